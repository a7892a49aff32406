// gemm_terms.h by matrix tiles: floats are split into three bfloat16 numbers each (split_parts.h). A block of rows of
// [X1 X2 ...] is split once, in the core's own cache, and passes all panels of W, which is split before. Blocks whose
// sums are not all finite are made of floats, as gemm_terms.h would make them.
#pragma once

#include "graphweft/gemm_half.h"
#include "graphweft/lines.h"
#include "graphweft/split_parts.h"

#if defined(GW_MATRIX_TILES)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

namespace gw {

inline constexpr int64_t split_sums = 32 * 32;    // of 32 rows and two panels
inline constexpr int64_t split_block_rows = 288;  // weights that the second cache does not hold come once for so many

// Sixteen columns of a term, or fewer at its end, that are split at once.
struct split_lane_group {
  int64_t term, first, lanes;
};

// Where the terms' columns lie in a row that is split: every term begins with a new group, so rows are split where they
// lie.
struct split_layout {
  std::vector<split_lane_group> groups;
  int64_t k = 0, steps;

  split_layout(const gw_term_f32* terms, int64_t num_terms) {
    for (int64_t t = 0; t < num_terms; k += terms[t++].k)
      for (int64_t at = 0; at < terms[t].k; at += half_panel)
        groups.push_back({t, at, std::min<int64_t>(half_panel, terms[t].k - at)});
    steps = int64_t(groups.size() + 1) / 2;
  }

  // The numbers of group `at` of a row of which term t begins at from[t]; zeros behind the last group.
  GW_INLINE half_sums load(const float* const* from, int64_t at) const {
    if (at == int64_t(groups.size())) return half_sums{};
    const split_lane_group& group = groups[size_t(at)];
    return load_lanes(from[group.term] + group.first, group.lanes);
  }
};

// The weights of all terms, one below the other.
struct split_weights {
  int64_t m, steps;
  bool finite;
  word_buffer parts;  // [pair of panels][step][part][panel][16][16]: words of rows q and q + 16 of a step

  split_weights(const gw_term_f32* terms, const split_layout& layout, int64_t columns)
      : m(columns), steps(layout.steps) {
    const int64_t width = padded_to(m, half_panel);
    parts = make_words(checked_mul(padded_to(m, 32) / 32 * steps, split_words));
    const float_buffer rows = make_buffer(checked_mul(steps * split_step, width));
    std::fill_n(rows.get(), steps * split_step * width, 0.0f);
    for (size_t at = 0; at < layout.groups.size(); ++at)
      put(terms[layout.groups[at].term], layout.groups[at], rows.get() + int64_t(at) * half_panel * width, width);
    split_check check;
    for (int64_t col = 0; col < width; col += half_panel)
      for (int64_t step = 0; step < steps; ++step)
        for (int64_t q = 0; q < 16; ++q) {
          const float* const from = rows.get() + (step * split_step + q) * width + col;
          half_words words[3];
          split_lanes(load_lanes(from, half_panel), load_lanes(from + 16 * width, half_panel), words, check);
          store_parts(words, panel(col / 32, step) + (col / half_panel % 2 * 16 + q) * half_panel);
        }
    finite = check.holds();
  }

  [[nodiscard]] uint32_t* panel(int64_t pair, int64_t step) const {
    return parts.get() + (pair * steps + step) * split_words;
  }

 private:
  void put(const gw_term_f32& term, const split_lane_group& group, float* out, int64_t width) const {
    const float* const from = term.w + group.first * (term.w_transposed ? 1 : term.ldw);
    if (!term.w_transposed) {
      for (int64_t i = 0; i < group.lanes; ++i)
        std::memcpy(out + i * width, from + i * term.ldw, size_t(m) * sizeof(float));
      return;
    }
    for (int64_t j = 0; j < m; ++j)
      for (int64_t i = 0; i < group.lanes; ++i) out[i * width + j] = from[j * term.ldw + i];
  }
};

// The same of floats, for blocks that need it; made when the first one does.
class float_weights {
 public:
  float_weights(const gw_term_f32* terms, int64_t num_terms, int64_t k, const std::vector<panel>& panels)
      : terms_(terms), num_terms_(num_terms), k_(k), panels_(panels) {}

  const float* get() {
    std::call_once(made_, [&] {
      packed_ = make_buffer(checked_mul(k_, padded_width(panels_)));
      for (int64_t t = 0, first = 0; t < num_terms_; first += terms_[t++].k) {
        const gw_term_f32& term = terms_[t];
        gemm_pack_part(panels_, k_, first, term.k, term.w, term.ldw, term.w_transposed != 0, packed_.get());
      }
    });
    return packed_.get();
  }

 private:
  const gw_term_f32* terms_;
  int64_t num_terms_, k_;
  const std::vector<panel>& panels_;
  std::once_flag made_;
  float_buffer packed_;
};

// What a thread multiplies with.
struct split_room {
  word_buffer split;     // a block of rows: [32 rows][step][part][16 rows][16], words of columns i and i + 16 of a step
  float_buffer summed;   // the same of terms that are sums over edges, one after the other
  float_buffer widened;  // a row of terms that are stored in bfloat16, one after the other
  float_buffer sums;     // of the block: [pair of panels][32 rows][32][32]
  std::vector<const float*> from;  // where the row of each term is
};

// A product of split floats, block of rows by block of rows. Tile products take less time than rows of tables that come
// from memory, so these are fetched by the loops that read them.
class split_product {
 public:
  split_product(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms, const gw_epilogue_f32* epilogue,
                float* y, int64_t ldy)
      : terms_(terms),
        num_terms_(num_terms),
        layout_(terms, num_terms),
        weights_(terms, layout_, m),
        shape_{n, layout_.k, m, nullptr, layout_.k, y, ldy, epilogue},
        cut_(n, layout_.k),
        block_(std::min<int64_t>(cut_.grain, split_block_rows)),
        panels_(cut_panels(m)),
        floats_(terms, num_terms, layout_.k, panels_),
        streams_(streams_output(shape_)),
        rooms_(static_cast<size_t>(num_threads())) {
    for (int64_t t = 0; t < num_terms; ++t) {
      if (terms[t].edges) summed_ += terms[t].k;
      if (widens(terms[t])) widened_ += terms[t].k;
    }
  }

  void run() {
    float* const col_sum = shape_.epilogue ? shape_.epilogue->col_sum : nullptr;
    column_sums sums(col_sum != nullptr, cut_.chunks, shape_.m);
    parallel_chunks(cut_.chunks, [&](int64_t chunk) {
      const split_session session;
      split_room& room = rooms_[size_t(thread_id())];
      if (!room.split) make(room);
      const int64_t end = std::min(shape_.n, (chunk + 1) * cut_.grain);
      for (int64_t row = chunk * cut_.grain; row < end; row += block_)
        make_rows(row, std::min(block_, end - row), room, sums.row(chunk));
      finish_streams();
    });
    if (col_sum) sums.finish(col_sum);
  }

 private:
  [[nodiscard]] int64_t tall(int64_t count) const { return padded_to(count, 32) / 32; }
  static bool widens(const gw_term_f32& term) { return term.half && !term.edges; }

  void make(split_room& room) const {
    room.split = make_words(checked_mul(tall(block_) * layout_.steps, split_words));
    room.sums = make_buffer(layout_.steps > split_depth ? tall(block_) * 32 * padded_to(shape_.m, 32) : split_sums);
    room.summed = make_buffer(checked_mul(block_, summed_));
    room.widened = make_buffer(widened_);
    room.from.resize(size_t(num_terms_));
  }

  // Rows [row, row + count) of Y.
  void make_rows(int64_t row, int64_t count, split_room& room, float* col_sum) {
    sum_terms(row, count, room.summed.get());
    const bool splits = split(row, count, room) && weights_.finite;
    splits ? multiply(row, count, room, col_sum) : multiply_floats(row, count, room, col_sum);
  }

  // Rows of terms that are sums over edges, [rows][k] for each of them.
  void sum_terms(int64_t row, int64_t count, float* out) const {
    for (int64_t t = 0; t < num_terms_; ++t) {
      if (!terms_[t].edges) continue;
      put_term(terms_[t], row, count, true, nullptr, out);
      out += block_ * terms_[t].k;
    }
  }

  // Where the terms of row `row`, the i-th of its block, are.
  void find(int64_t row, int64_t i, split_room& room) const {
    const float* summed = room.summed.get();
    float* widened = room.widened.get();
    for (int64_t t = 0; t < num_terms_; ++t) {
      const gw_term_f32& term = terms_[t];
      if (term.edges) {
        room.from[size_t(t)] = summed + i * term.k;
        summed += block_ * term.k;
        continue;
      }
      const stored_rows rows = rows_of(term);
      const int64_t bytes = rows.bytes(term.k), far = row + rows_ahead(bytes), near = row + 4;
      if (far < shape_.n) fetch_row<2>(rows.at(far), bytes);
      if (near < shape_.n) fetch_row<3>(rows.at(near), bytes);
      if (widens(term)) {
        rows.read(row, 0, term.k, widened);
        room.from[size_t(t)] = widened;
        widened += term.k;
      } else {
        room.from[size_t(t)] = reinterpret_cast<const float*>(rows.at(row));
      }
    }
  }

  // Whether rows [row, row + count) can be split.
  bool split(int64_t row, int64_t count, split_room& room) const {
    split_check check;
    for (int64_t i = 0; i < count; ++i) {
      find(row + i, i, room);
      uint32_t* to = room.split.get() + i / 32 * layout_.steps * split_words + i % 32 * half_panel;
      for (int64_t step = 0; step < layout_.steps; ++step, to += split_words) {
        half_words words[3];
        split_lanes(layout_.load(room.from.data(), 2 * step), layout_.load(room.from.data(), 2 * step + 1), words,
                    check);
        store_parts(words, to);
      }
    }
    return check.holds();
  }

  // The products of rows that are split.
  void multiply(int64_t row, int64_t count, const split_room& room, float* col_sum) const {
    const half_output output{shape_, half_form::integers, nullptr, col_sum, streams_};
    const bool keeps = layout_.steps > split_depth;
    const auto look = [] {};
    for (int64_t step = 0; step < layout_.steps; step += split_depth) {
      const int64_t depth = std::min(split_depth, layout_.steps - step);
      for (int64_t col = 0; col < shape_.m; col += 32)
        for (int64_t i = 0; i < count; i += 32) {
          const uint32_t* const a = room.split.get() + (i / 32 * layout_.steps + step) * split_words;
          const uint32_t* const b = weights_.panel(col / 32, step);
          float* const c = room.sums.get() + (keeps ? (col / 32 * tall(count) + i / 32) * split_sums : 0);
          shape_.m - col > half_panel ? multiply_split<2>(a, b, depth, step > 0, look, c, 32)
                                      : multiply_split<1>(a, b, depth, step > 0, look, c, 32);
          if (step + depth == layout_.steps)
            output.write(c, 32, row + i, row + std::min(count, i + 32), col, std::min<int64_t>(32, shape_.m - col));
        }
    }
  }

  // The products of rows as they are.
  void multiply_floats(int64_t row, int64_t count, split_room& room, float* col_sum) {
    const float_buffer joined = make_buffer(checked_mul(cut_.rows, shape_.k));
    const float_buffer partial = cut_.blocks > 1 ? make_buffer(cut_.rows * padded_width(panels_)) : float_buffer();
    for (int64_t first = 0; first < count; first += cut_.rows) {
      const int64_t rows = std::min(cut_.rows, count - first);
      float* to = joined.get();
      for (int64_t i = first; i < first + rows; ++i) {
        find(row + i, i, room);
        for (int64_t t = 0; t < num_terms_; to += terms_[t++].k)
          std::memcpy(to, room.from[size_t(t)], size_t(terms_[t].k) * sizeof(float));
      }
      gemm_block_rows(shape_, {0, shape_.k, true, true}, cut_, panels_, floats_.get(), joined.get(), shape_.k,
                      row + first, rows, partial.get(), col_sum, nullptr, streams_);
    }
  }

  const gw_term_f32* terms_;
  int64_t num_terms_;
  split_layout layout_;
  split_weights weights_;
  gemm_shape shape_;
  gemm_cut cut_;
  int64_t block_;  // rows that are split at a time
  std::vector<panel> panels_;
  float_weights floats_;
  bool streams_;
  int64_t summed_ = 0, widened_ = 0;  // columns of terms that are sums over edges, and of those stored in bfloat16
  std::vector<split_room> rooms_;
};

}  // namespace gw

#endif
