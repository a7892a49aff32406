// gemm_tn.h and gemm_tn_terms.h by matrix tiles, as G^T X: floats are split into three bfloat16 numbers each
// (split_parts.h). Blocks of G are turned while they are split, and X, which is wider most often, is not; slabs of rows
// depend on sizes alone and are added up in their order.
#pragma once

#include "graphweft/coming_rows.h"
#include "graphweft/gemm_tn_half.h"
#include "graphweft/split_parts.h"

#if defined(GW_MATRIX_TILES)

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace gw {

struct split_contraction_cut {
  static constexpr int64_t block = split_depth * split_step;    // rows of X and G that are split at a time
  static constexpr int64_t range = 512;                         // columns of X that are split at a time
  static constexpr int64_t panels = split_depth * split_words;  // words of a block's 32 columns
  int64_t width, height;                                        // of the products, side by side
  int64_t slabs, slab_rows;

  explicit split_contraction_cut(const half_contraction& args) : width(0), height(padded_to(args.m, 32)) {
    constexpr int64_t scratch_floats = int64_t{1} << 20, fewest = 8, most = 64;
    for (int64_t t = 0; t < args.num_lefts; ++t) width += padded_to(args.lefts[t].k, half_panel);
    const int64_t blocks = (args.n + block - 1) / block;
    const int64_t wanted = std::clamp(scratch_floats / std::max<int64_t>(1, height * width), fewest, most);
    slab_rows = std::max<int64_t>(1, (blocks + wanted - 1) / wanted) * block;
    slabs = (args.n + slab_rows - 1) / slab_rows;
  }
};

// Where the parts of 16 columns from `col` on are, in row `q` of the words of a step.
inline int64_t split_column(int64_t col, int64_t step, int64_t q) {
  return col / 32 * split_contraction_cut::panels + step * split_words + (col / half_panel % 2 * 16 + q) * half_panel;
}

// Columns [first, first + width) of rows [row, row + count) of X, with zeros behind the last row. Rows that come within
// the next `ahead` ones are fetched.
inline void split_left_rows(const gw_left_f32& left, int64_t row, int64_t count, int64_t first, int64_t width,
                            int64_t ahead, uint32_t* out, split_check& check) {
  const stored_rows rows{left.x, left.ldx, false, left.rows};
  const int64_t bytes = rows.bytes(width), distance = std::clamp<int64_t>(8192 / std::max<int64_t>(1, bytes), 2, 16);
  const auto at = [&](int64_t i) {
    return i < count ? reinterpret_cast<const float*>(rows.at(row + i, first)) : nullptr;
  };
  for (int64_t begin = 0; begin < count; begin += split_step)
    for (int64_t q = 0; q < 16; ++q) {
      const float *one = at(begin + q), *two = at(begin + q + 16);
      for (const int64_t next : {begin + q + distance, begin + q + 16 + distance})
        if (next < count + ahead) fetch_row<3>(rows.at(row + next, first), bytes);
      for (int64_t col = 0; col < width; col += half_panel) {
        const int64_t lanes = std::min<int64_t>(half_panel, width - col);
        half_words words[3];
        split_lanes(load_lanes(one ? one + col : nullptr, lanes), load_lanes(two ? two + col : nullptr, lanes), words,
                    check);
        store_parts(words, out + split_column(col, begin / split_step, q));
      }
    }
}

// `count` rows of G, at most 32 of them, turned: words of rows q and q + 16 side by side, with zeros behind the last.
inline void turn_split_rows(const float* from, int64_t ld, int64_t count, int64_t m, int64_t step, uint32_t* out,
                            split_check& check) {
  for (int64_t col = 0; col < m; col += half_panel) {
    const int64_t lanes = std::min<int64_t>(half_panel, m - col);
    alignas(64) float turned[2][16 * half_panel];
    for (int64_t half = 0; half < 2; ++half) {
      half_words rows[16];
      for (int64_t i = 0; i < 16; ++i)
        rows[i] = half_words(load_lanes(16 * half + i < count ? from + (16 * half + i) * ld + col : nullptr, lanes));
      transpose_words(rows, reinterpret_cast<uint32_t*>(turned[half]), half_panel);
    }
    for (int64_t j = 0; j < 16; ++j) {
      half_words words[3];
      split_lanes(load_lanes(turned[0] + j * half_panel, half_panel),
                  load_lanes(turned[1] + j * half_panel, half_panel), words, check);
      store_parts(words, out + split_column(col, step, j));
    }
  }
}

// Rows [row, row + count) of G, turned; `made` has room for 32 rows.
inline void turn_split_block(const half_contraction& args, int64_t row, int64_t count, float* col_sum, float* made,
                             uint32_t* turned, split_check& check) {
  const gw_epilogue_f32 none{};
  const gw_epilogue_f32& stages = args.epilogue ? *args.epilogue : none;
  for (int64_t i = 0; i < count; i += split_step, row += split_step) {
    const int64_t rows = std::min(split_step, count - i);
    const auto* const g = reinterpret_cast<const float*>(args.g.at(row));
    if (args.edges)
      sum_rows({*args.edges, args.g.x, args.g.ld, args.m, stages, col_sum, true}, row, row + rows, made, args.m);
    else if (col_sum)
      add_rows(g, args.g.ld, rows, args.m, col_sum);
    if (args.row_scale)
      for (int64_t at = 0; at < rows; ++at)
        for (int64_t j = 0; j < args.m; ++j) made[at * args.m + j] = g[at * args.g.ld + j] * args.row_scale[row + at];
    const bool is_made = args.edges || args.row_scale;
    turn_split_rows(is_made ? made : g, is_made ? args.m : args.g.ld, rows, args.m, i / split_step, turned, check);
  }
}

// What a thread splits a block of rows into.
struct split_blocks {
  word_buffer turned, panels;  // of G, and of one range of X
  float_buffer made;           // rows of G

  void make(const half_contraction& args, const split_contraction_cut& cut) {
    int64_t widest = 0;
    for (int64_t t = 0; t < args.num_lefts; ++t) widest = std::max(widest, std::min(args.lefts[t].k, cut.range));
    turned = make_words(cut.height / 32 * cut.panels);
    panels = make_words(padded_to(widest, 32) / 32 * cut.panels);
    made = make_buffer(args.edges || args.row_scale ? split_step * args.m : 0);
  }
};

// What is packed after columns before `first` of left operand `t`, for rows [row, row + count): its next columns, the
// next operand, or the first one for the rows that follow, up to `end`.
inline coming_rows next_coming(const half_contraction& args, int64_t t, int64_t first, int64_t row, int64_t count,
                               int64_t block, int64_t end) {
  if (first >= args.lefts[t].k) first = 0, ++t;
  if (t == args.num_lefts) t = 0, row += count;
  const gw_left_f32& left = args.lefts[t];
  const int64_t last = std::min(end, row + block);
  return {{left.x, left.ldx, left.half != 0, left.rows},
          first,
          std::min(half_contraction_cut::range, left.k - first),
          row,
          last};
}

// One slab's products into out[height][width]; whether its numbers could be split.
inline bool contract_split_slab(const half_contraction& args, const split_contraction_cut& cut, int64_t slab,
                                const split_blocks& room, float* out, float* col_sum) {
  constexpr int64_t block = cut.block, range = cut.range;
  const split_session session;
  split_check check;
  const int64_t begin = slab * cut.slab_rows, end = std::min(args.n, begin + cut.slab_rows);
  for (int64_t row = begin; row < end; row += block) {
    const int64_t rows = std::min(block, end - row), steps = padded_to(rows, split_step) / split_step;
    turn_split_block(args, row, rows, col_sum, room.made.get(), room.turned.get(), check);
    const int64_t ahead = std::clamp<int64_t>(end - row - rows, 0, 16);
    float* to = out;
    for (int64_t t = 0; t < args.num_lefts; ++t)
      for (int64_t first = 0; first < args.lefts[t].k; first += range) {
        const int64_t width = std::min(range, args.lefts[t].k - first), wide = padded_to(width, half_panel);
        split_left_rows(args.lefts[t], row, rows, first, width, ahead, room.panels.get(), check);
        coming_rows coming = next_coming(args, t, first + range, row, rows, block, end);
        const auto look = [&]() GW_INLINE_LAMBDA { coming.fetch(2); };
        for (int64_t col = 0; col < wide; col += 32)
          for (int64_t i = 0; i < cut.height; i += 32) {
            const uint32_t *const a = room.turned.get() + i / 32 * cut.panels, *const b = room.panels.get() +
                                                                                          col / 32 * cut.panels;
            float* const c = to + i * cut.width + col;
            wide - col > half_panel ? multiply_split<2>(a, b, steps, row != begin, look, c, cut.width)
                                    : multiply_split<1>(a, b, steps, row != begin, look, c, cut.width);
          }
        to += wide;
      }
  }
  return check.holds();
}

// Whether all numbers could be split; otherwise the products are to be made of floats.
inline bool contract_split(const half_contraction& args) {
  const split_contraction_cut cut(args);
  const int64_t floats = checked_mul(cut.height, cut.width);
  column_sums sums(args.col_sum != nullptr, cut.slabs, args.m);
  const float_buffer slabs = make_buffer(checked_mul(std::max<int64_t>(1, cut.slabs), floats));
  if (cut.slabs == 0) std::fill_n(slabs.get(), floats, 0.0f);
  std::atomic<bool> split{true};
  std::vector<split_blocks> rooms(static_cast<size_t>(num_threads()));
  parallel_chunks(cut.slabs, [&](int64_t slab) {
    split_blocks& room = rooms[size_t(thread_id())];
    if (!room.turned) room.make(args, cut);
    if (!contract_split_slab(args, cut, slab, room, slabs.get() + slab * floats, sums.row(slab))) split = false;
  });
  if (!split) return false;
  finish_contraction(args, cut.slabs, cut.width, floats, slabs.get());
  if (args.col_sum) sums.finish(args.col_sum);
  return true;
}

}  // namespace gw

#endif
