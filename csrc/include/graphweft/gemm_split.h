// gemm_terms.h by matrix tiles: floats are split into three bfloat16 numbers each (split_parts.h). A block of rows of
// [X1 X2 ...] is split once, in the core's own cache, and passes all panels of W, which is split before. Blocks whose
// sums are not all finite are made of floats, as gemm_terms.h would make them.
#pragma once

#include "graphweft/gemm_half.h"
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
  word_buffer parts;  // [pair of panels][step][part][panel][16][16]: words of rows q and q + 16 of a step

  split_weights(const gw_term_f32* terms, int64_t num_terms, int64_t columns) : m(columns) {
    for (int64_t t = 0; t < num_terms; ++t) k += terms[t].k;
    steps = padded_to(k, split_step) / split_step;
    const int64_t width = padded_to(m, half_panel);
    parts = make_words(checked_mul(padded_to(m, 32) / 32 * steps, split_words));
    const float_buffer rows = make_buffer(checked_mul(steps * split_step, width));
    std::fill_n(rows.get(), steps * split_step * width, 0.0f);
    for (int64_t t = 0, first = 0; t < num_terms; first += terms[t++].k) put(terms[t], rows.get() + first * width, width);
    for (int64_t col = 0; col < width; col += half_panel)
      for (int64_t step = 0; step < steps; ++step)
        for (int64_t q = 0; q < 16; ++q) {
          const float* const from = rows.get() + (step * split_step + q) * width + col;
          half_words words[3];
          split_lanes(load_lanes(from, half_panel), load_lanes(from + 16 * width, half_panel), words);
          store_parts(words, panel(col / 32, step) + (col / half_panel % 2 * 16 + q) * half_panel);
        }
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

// Rows [row, row + count) of the terms side by side, `ld` floats from row to row, in `joined`; `made` is for one term.
inline void join_terms(const gw_term_f32* terms, int64_t num_terms, int64_t row, int64_t count, bool fetches,
                       row_queue* ahead, float* made, float* joined, int64_t ld) {
  for (int64_t t = 0; t < num_terms; joined += terms[t++].k) {
    const gw_term_f32& term = terms[t];
    const bool in_place = reads_in_place(term);
    if (!in_place) put_term(term, row, count, fetches, ahead, made);
    const float* const from = in_place ? static_cast<const float*>(term.x) + row * term.ldx : made;
    const int64_t between = in_place ? term.ldx : term.k;
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(joined + i * ld, from + i * between, size_t(term.k) * sizeof(float));
  }
}

// `count` rows of whole steps into [32 rows][step][part][16 rows][16], words of columns i and i + 16 of a step.
inline void split_rows(const float* x, int64_t ldx, int64_t count, int64_t steps, uint32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float* from = x + i * ldx;
    uint32_t* to = out + i / 32 * steps * split_words + i % 32 * half_panel;
    for (int64_t step = 0; step < steps; ++step, from += split_step, to += split_words) {
      __builtin_prefetch(from + 8 * ldx, 0, 3);
      __builtin_prefetch(from + 8 * ldx + half_panel, 0, 3);
      half_words words[3];
      split_lanes(load_lanes(from, half_panel), load_lanes(from + half_panel, half_panel), words);
      store_parts(words, to);
    }
  }
}

// Products of `count` rows with all weights into [pair of panels][32 rows][32][32].
inline void multiply_split_rows(const uint32_t* x, const split_weights& weights, int64_t count, row_queue* ahead,
                                float* sums) {
  const int64_t tall = padded_to(count, 32) / 32, pairs = padded_to(weights.m, 32) / 32;
  const auto look = [&]() GW_INLINE_LAMBDA {
    if (ahead) ahead->look();
  };
  for (int64_t step = 0; step < weights.steps; step += split_depth) {
    const int64_t depth = std::min(split_depth, weights.steps - step);
    for (int64_t pair = 0; pair < pairs; ++pair)
      for (int64_t i = 0; i < tall; ++i) {
        const uint32_t* const a = x + (i * weights.steps + step) * split_words;
        const uint32_t* const b = weights.panel(pair, step);
        float* const c = sums + (pair * tall + i) * split_sums;
        weights.m - 32 * pair > half_panel ? multiply_split<2>(a, b, depth, step > 0, look, c, 32)
                                           : multiply_split<1>(a, b, depth, step > 0, look, c, 32);
      }
  }
}

// Whether the sums of `count` rows are finite.
inline bool split_rows_finite(const float* sums, int64_t count, int64_t m) {
  const int64_t tall = padded_to(count, 32) / 32;
  for (int64_t pair = 0; 32 * pair < m; ++pair)
    for (int64_t i = 0; i < count; ++i)
      if (!all_finite(sums + (pair * tall + i / 32) * split_sums + i % 32 * 32, m - 32 * pair > half_panel ? 32 : 16))
        return false;
  return true;
}

inline void gemm_split_terms(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                             const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  const split_weights weights(terms, num_terms, m);
  const int64_t k = weights.k, ld = weights.steps * split_step;
  const gemm_shape shape{n, k, m, nullptr, k, y, ldy, epilogue};
  const std::vector<panel> panels = cut_panels(m);
  float_weights floats(terms, num_terms, k, panels);
  const gemm_cut cut(n, k);
  const bool in_place = num_terms == 1 && reads_in_place(terms[0]) && k == ld, streams = streams_output(shape);
  int64_t widest = 0, tables = 0;
  for (int64_t t = 0; t < num_terms; ++t)
    if (!reads_in_place(terms[t])) widest = std::max(widest, terms[t].k), ++tables;
  float* col_sum = epilogue ? epilogue->col_sum : nullptr;
  column_sums sums(col_sum != nullptr, cut.chunks, m);
  std::vector<fetched_rows> fetched_by(static_cast<size_t>(num_threads()));
  parallel_chunks(cut.chunks, [&](int64_t chunk) {
    const split_session session;
    const int64_t tall = padded_to(cut.rows, 32) / 32, pairs = padded_to(m, 32) / 32;
    const word_buffer split = make_words(checked_mul(tall * weights.steps, split_words));
    const float_buffer products = make_buffer(pairs * tall * split_sums), made = make_buffer(cut.rows * widest);
    const float_buffer joined = make_buffer(in_place ? 0 : checked_mul(cut.rows, ld));
    if (!in_place) std::fill_n(joined.get(), cut.rows * ld, 0.0f);
    const half_output output{shape, half_form::integers, nullptr, sums.row(chunk), streams};
    const int64_t end = std::min(n, (chunk + 1) * cut.grain);
    for (int64_t row = chunk * cut.grain; row < end; row += cut.rows) {
      const int64_t count = std::min(cut.rows, end - row), next = row + count;
      fetched_rows& fetched = fetched_by[size_t(thread_id())];
      const bool fetches = fetched.row != row || fetched.entries.empty();
      fetched.entries.clear(), fetched.bytes = 0;
      if (tables > 0 && next < n) list_rows(terms, num_terms, next, std::min(cut.rows, n - next), fetched);
      const row_queue::entry* const coming = fetched.entries.data();
      row_queue queue(coming, coming + fetched.entries.size(), fetched.bytes,
                      padded_to(count, 32) / 32 * pairs * weights.steps * split_looks +
                          count_row_looks(terms, num_terms, row, count));
      row_queue* const ahead = fetched.entries.empty() ? nullptr : &queue;
      if (!in_place) join_terms(terms, num_terms, row, count, fetches, ahead, made.get(), joined.get(), ld);
      const float* const x = in_place ? static_cast<const float*>(terms[0].x) + row * terms[0].ldx : joined.get();
      const int64_t ldx = in_place ? terms[0].ldx : ld;
      split_rows(x, ldx, count, weights.steps, split.get());
      multiply_split_rows(split.get(), weights, count, ahead, products.get());
      if (ahead) ahead->rest();
      if (!split_rows_finite(products.get(), count, m)) {
        const float_buffer partial = make_buffer(cut.blocks > 1 ? cut.rows * padded_width(panels) : 0);
        gemm_block_rows(shape, {0, k, true, true}, cut, panels, floats.get(), x, ldx, row, count,
                        cut.blocks > 1 ? partial.get() : nullptr, sums.row(chunk), nullptr, streams);
        continue;
      }
      for (int64_t col = 0; col < m; col += 32)
        for (int64_t i = 0; i < count; i += 32)
          output.write(products.get() + (col / 32 * (padded_to(count, 32) / 32) + i / 32) * split_sums, 32, row + i,
                       row + std::min(count, i + 32), col, std::min<int64_t>(32, m - col));
    }
    finish_streams();
  });
  if (col_sum) sums.finish(col_sum);
}

}  // namespace gw

#endif
