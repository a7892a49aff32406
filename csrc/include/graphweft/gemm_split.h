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

inline constexpr int64_t split_sums = 32 * 32;  // of 32 rows and two panels

// The weights of all terms, one below the other.
struct split_weights {
  int64_t k = 0, m, steps;
  bool finite;
  word_buffer parts;  // [pair of panels][step][part][panel][16][16]: words of rows q and q + 16 of a step

  split_weights(const gw_term_f32* terms, int64_t num_terms, int64_t columns) : m(columns) {
    for (int64_t t = 0; t < num_terms; ++t) k += terms[t].k;
    steps = padded_to(k, split_step) / split_step;
    const int64_t width = padded_to(m, half_panel);
    parts = make_words(checked_mul(padded_to(m, 32) / 32 * steps, split_words));
    const float_buffer rows = make_buffer(checked_mul(steps * split_step, width));
    std::fill_n(rows.get(), steps * split_step * width, 0.0f);
    for (int64_t t = 0, first = 0; t < num_terms; first += terms[t++].k)
      put(terms[t], rows.get() + first * width, width);
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
  void put(const gw_term_f32& term, float* out, int64_t width) const {
    if (!term.w_transposed) {
      for (int64_t i = 0; i < term.k; ++i)
        std::memcpy(out + i * width, term.w + i * term.ldw, size_t(m) * sizeof(float));
      return;
    }
    constexpr int64_t block = 16;  // lines of both in the first cache
    for (int64_t i = 0; i < term.k; i += block)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t at = i; at < std::min(term.k, i + block); ++at) out[at * width + j] = term.w[j * term.ldw + at];
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
  float_buffer row;      // one row of all terms
  float_buffer sums;     // of the block: [pair of panels][32 rows][32][32]
  fetched_rows fetched;  // for the next block
};

// A product of split floats, block of rows by block of rows.
class split_product {
 public:
  split_product(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms, const gw_epilogue_f32* epilogue,
                float* y, int64_t ldy)
      : terms_(terms),
        num_terms_(num_terms),
        weights_(terms, num_terms, m),
        shape_{n, weights_.k, m, nullptr, weights_.k, y, ldy, epilogue},
        cut_(n, weights_.k),
        panels_(cut_panels(m)),
        floats_(terms, num_terms, weights_.k, panels_),
        streams_(streams_output(shape_)),
        rooms_(static_cast<size_t>(num_threads())) {
    for (int64_t t = 0; t < num_terms; ++t) {
      tables_ = tables_ || !reads_in_place(terms[t]);
      if (terms[t].edges) summed_ += terms[t].k;
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
      for (int64_t row = chunk * cut_.grain; row < end; row += cut_.rows)
        make_rows(row, std::min(cut_.rows, end - row), room, sums.row(chunk));
      finish_streams();
    });
    if (col_sum) sums.finish(col_sum);
  }

 private:
  [[nodiscard]] int64_t tall(int64_t count) const { return padded_to(count, 32) / 32; }
  [[nodiscard]] int64_t width() const { return weights_.steps * split_step; }

  void make(split_room& room) const {
    room.split = make_words(checked_mul(tall(cut_.rows) * weights_.steps, split_words));
    room.sums = make_buffer(weights_.steps > split_depth ? tall(cut_.rows) * 32 * padded_to(shape_.m, 32) : split_sums);
    room.summed = make_buffer(checked_mul(cut_.rows, summed_));
    room.row = make_buffer(width());
    std::fill_n(room.row.get(), width(), 0.0f);  // columns behind the last stay zero
  }

  // Rows [row, row + count) of Y.
  void make_rows(int64_t row, int64_t count, split_room& room, float* col_sum) {
    fetched_rows& fetched = room.fetched;
    const bool fetches = fetched.row != row || fetched.entries.empty();
    fetched.entries.clear(), fetched.bytes = 0;
    const int64_t next = row + count;
    if (tables_ && next < shape_.n) list_rows(terms_, num_terms_, next, std::min(cut_.rows, shape_.n - next), fetched);
    const row_queue::entry* const coming = fetched.entries.data();
    const int64_t looks =
        tall(count) * tall(shape_.m) * weights_.steps * split_looks + count_row_looks(terms_, num_terms_, row, count);
    row_queue queue(coming, coming + fetched.entries.size(), fetched.bytes, std::max<int64_t>(1, looks));
    row_queue* const ahead = fetched.entries.empty() ? nullptr : &queue;
    sum_terms(row, count, fetches, ahead, room.summed.get());
    const bool splits = split(row, count, ahead, room) && weights_.finite;
    splits ? multiply(row, count, ahead, room, col_sum) : multiply_floats(row, count, room, col_sum);
    if (ahead) ahead->rest();
  }

  // Rows of terms that are sums over edges, [rows][k] for each of them.
  void sum_terms(int64_t row, int64_t count, bool fetches, row_queue* ahead, float* out) const {
    for (int64_t t = 0; t < num_terms_; ++t) {
      if (!terms_[t].edges) continue;
      put_term(terms_[t], row, count, fetches, ahead, out);
      out += cut_.rows * terms_[t].k;
    }
  }

  // Columns of all terms of row `row`, the i-th of its block.
  void join(int64_t row, int64_t i, const float* summed, float* out) const {
    for (int64_t t = 0; t < num_terms_; out += terms_[t++].k) {
      const gw_term_f32& term = terms_[t];
      if (term.edges) {
        std::memcpy(out, summed + i * term.k, size_t(term.k) * sizeof(float));
        summed += cut_.rows * term.k;
      } else {
        rows_of(term).read(row, 0, term.k, out);
      }
    }
  }

  // Whether rows [row, row + count) can be split.
  bool split(int64_t row, int64_t count, row_queue* ahead, const split_room& room) const {
    const bool in_place = num_terms_ == 1 && reads_in_place(terms_[0]) && width() == shape_.k;
    split_check check;
    for (int64_t i = 0; i < count; ++i) {
      const float* from =
          in_place ? static_cast<const float*>(terms_[0].x) + (row + i) * terms_[0].ldx : room.row.get();
      if (ahead) ahead->look();
      if (in_place) fetch_row<3>(reinterpret_cast<const char*>(from + 8 * terms_[0].ldx), 4 * shape_.k);
      if (!in_place) join(row + i, i, room.summed.get(), room.row.get());
      uint32_t* to = room.split.get() + i / 32 * weights_.steps * split_words + i % 32 * half_panel;
      for (int64_t step = 0; step < weights_.steps; ++step, from += split_step, to += split_words) {
        half_words words[3];
        split_lanes(load_lanes(from, half_panel), load_lanes(from + half_panel, half_panel), words, check);
        store_parts(words, to);
      }
    }
    return check.holds();
  }

  // The products of rows that are split.
  void multiply(int64_t row, int64_t count, row_queue* ahead, const split_room& room, float* col_sum) const {
    const half_output output{shape_, half_form::integers, nullptr, col_sum, streams_};
    const bool keeps = weights_.steps > split_depth;
    const auto look = [&]() GW_INLINE_LAMBDA {
      if (ahead) ahead->look();
    };
    for (int64_t step = 0; step < weights_.steps; step += split_depth) {
      const int64_t depth = std::min(split_depth, weights_.steps - step);
      for (int64_t col = 0; col < shape_.m; col += 32)
        for (int64_t i = 0; i < count; i += 32) {
          const uint32_t* const a = room.split.get() + (i / 32 * weights_.steps + step) * split_words;
          const uint32_t* const b = weights_.panel(col / 32, step);
          float* const c = room.sums.get() + (keeps ? (col / 32 * tall(count) + i / 32) * split_sums : 0);
          shape_.m - col > half_panel ? multiply_split<2>(a, b, depth, step > 0, look, c, 32)
                                      : multiply_split<1>(a, b, depth, step > 0, look, c, 32);
          if (step + depth == weights_.steps)
            output.write(c, 32, row + i, row + std::min(count, i + 32), col, std::min<int64_t>(32, shape_.m - col));
        }
    }
  }

  // The products of rows as they are.
  void multiply_floats(int64_t row, int64_t count, const split_room& room, float* col_sum) {
    const float_buffer joined = make_buffer(checked_mul(count, shape_.k));
    for (int64_t i = 0; i < count; ++i) join(row + i, i, room.summed.get(), joined.get() + i * shape_.k);
    const float_buffer partial = cut_.blocks > 1 ? make_buffer(cut_.rows * padded_width(panels_)) : float_buffer();
    gemm_block_rows(shape_, {0, shape_.k, true, true}, cut_, panels_, floats_.get(), joined.get(), shape_.k, row, count,
                    partial.get(), col_sum, nullptr, streams_);
  }

  const gw_term_f32* terms_;
  int64_t num_terms_;
  split_weights weights_;
  gemm_shape shape_;
  gemm_cut cut_;
  std::vector<panel> panels_;
  float_weights floats_;
  bool streams_;
  bool tables_ = false;  // whether rows lie elsewhere
  int64_t summed_ = 0;   // columns of terms that are sums over edges
  std::vector<split_room> rooms_;
};

}  // namespace gw

#endif
