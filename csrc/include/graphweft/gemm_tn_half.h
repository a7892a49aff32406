// dW1 = X1^T G, dW2 = X2^T G, ... of operands rounded to bfloat16, summed in float. G is rows as they lie or sums over
// edges, made on the way. Rows are cut into slabs, which depend on sizes alone and are added up in their order. Blocks
// of X are turned while they are rounded, so that two rows of the sum are one word.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "graphweft/edge_sums.h"
#include "graphweft/half_unit.h"
#include "graphweft/lines.h"
#include "graphweft/parallel.h"
#include "graphweft/rows.h"
#include "graphweft/stored_rows.h"

namespace gw {

struct half_contraction {
  int64_t n, m;
  const gw_left_f32* lefts;
  int64_t num_lefts;
  const gw_adjacency* edges;  // G's rows are sums of those of `g` over these; null: row i of G is row i of `g`
  const float* g;
  int64_t ldg;
  const float* row_scale;           // [n] scales the rows of G in the product, null: none; without edges
  const gw_epilogue_f32* epilogue;  // of sums over edges; null: none
  float* col_sum;                   // [m] column sums of G, not scaled; null: not wanted
};

struct half_contraction_cut {
  static constexpr int64_t block = 256, pairs = block / 2;  // rows of X and G that are rounded at a time
  static constexpr int64_t part = 64;                       // rows of G that are summed at a time
  static constexpr int64_t range = 512;                     // columns of X that are turned at a time
  int64_t width, height;                                    // of the products, one below the other, in whole tiles
  int64_t slabs, slab_rows;

  explicit half_contraction_cut(const half_contraction& args) : width(padded_to(args.m, half_panel)), height(0) {
    constexpr int64_t scratch_floats = int64_t{1} << 21, fewest = 8, most = 64;
    for (int64_t t = 0; t < args.num_lefts; ++t) height += padded_to(args.lefts[t].k, 16);
    const int64_t blocks = (args.n + block - 1) / block;
    const int64_t wanted = std::clamp(scratch_floats / std::max<int64_t>(1, height * width), fewest, most);
    slab_rows = std::max<int64_t>(1, (blocks + wanted - 1) / wanted) * block;
    slabs = (args.n + slab_rows - 1) / slab_rows;
  }
};

// Rows `at` and `at + 1` of `count` rows of G into panels [pairs][16], from row `from` on.
template <half_form Form>
void pack_half_rows(const float* from, int64_t ld, int64_t count, int64_t m, const float* scale, int64_t at,
                    uint32_t* out) {
  constexpr int64_t pairs = half_contraction_cut::pairs;
  for (int64_t i = 0; i < count; i += 2, from += 2 * ld) {
    const bool both = i + 1 < count;
    const float one = scale ? scale[i] : 1.0f, two = scale && both ? scale[i + 1] : 1.0f;
    uint32_t* to = out + (at + i) / 2 * half_panel;
    for (int64_t col = 0; col < m; col += half_panel, to += pairs * half_panel) {
      const int64_t lanes = std::min<int64_t>(half_panel, m - col);
      const half_words words = pair_lanes<Form>(load_lanes(from + col, lanes) * one,
                                                load_lanes(both ? from + ld + col : nullptr, lanes) * two);
      std::memcpy(to, &words, sizeof words);
    }
  }
}

// Columns [first, first + width) of rows [row, row + count) of X, turned: [width in whole tiles][pairs].
template <half_form Form, class T>
void turn_half_rows(const gw_left_f32& left, int64_t row, int64_t count, int64_t first, int64_t width, int64_t ahead,
                    uint32_t* out) {
  constexpr int64_t pairs = half_contraction_cut::pairs;
  const stored_rows rows{left.x, left.ldx, left.half != 0, left.rows};
  const auto at = [&](int64_t i, int64_t end) {
    return i < end ? reinterpret_cast<const T*>(rows.at(row + i, first)) : nullptr;
  };
  for (int64_t i = 0; i < count; i += 32) {
    const T *from[32], *next[32];
    for (int64_t r = 0; r < 32; ++r) {
      from[r] = at(i + r, count);
      next[r] = at(i + 32 + r, count + ahead);
    }
    for (int64_t col = 0; col < width; col += 16) {
      const int64_t lanes = std::min<int64_t>(16, width - col);
      half_words words[16];
      for (int p = 0; p < 16; ++p) {
        words[p] = pair_lanes<Form>(load_lanes(from[2 * p] ? from[2 * p] + col : nullptr, lanes),
                                    load_lanes(from[2 * p + 1] ? from[2 * p + 1] + col : nullptr, lanes));
        if (next[2 * p]) __builtin_prefetch(next[2 * p] + col, 0, 2);
        if (next[2 * p + 1]) __builtin_prefetch(next[2 * p + 1] + col, 0, 2);
      }
      transpose_words(words, out + col * pairs + i / 2, pairs);
    }
  }
}

// One slab's products into out[height][width].
template <half_form Form>
void contract_half_slab(const half_session& unit, const half_contraction& args, const half_contraction_cut& cut,
                        int64_t slab, float* out, float* col_sum) {
  constexpr int64_t block = cut.block, pairs = cut.pairs, part = cut.part;
  int64_t widest = 0;
  for (int64_t t = 0; t < args.num_lefts; ++t) widest = std::max(widest, std::min(args.lefts[t].k, cut.range));
  const word_buffer turned = make_words(padded_to(widest, 16) * pairs), panels = make_words(cut.width * pairs);
  const float_buffer made = make_buffer(args.edges ? part * args.m : 0);
  const gw_epilogue_f32 none{};
  const int64_t begin = slab * cut.slab_rows, end = std::min(args.n, begin + cut.slab_rows);
  for (int64_t row = begin; row < end; row += block) {
    const int64_t rows = std::min(block, end - row), used = padded_to((rows + 1) / 2, 16);
    if (rows < block) std::memset(panels.get(), 0, size_t(cut.width * pairs) * sizeof(uint32_t));
    for (int64_t i = 0; i < rows; i += part) {
      const int64_t count = std::min(part, rows - i);
      const float* g = args.g + (row + i) * args.ldg;
      if (args.edges) {
        sum_rows({*args.edges, args.g, args.ldg, args.m, args.epilogue ? *args.epilogue : none, col_sum, true}, row + i,
                 row + i + count, made.get(), args.m);
        g = made.get();
      } else if (col_sum) {
        add_rows(g, args.ldg, count, args.m, col_sum);
      }
      pack_half_rows<Form>(g, args.edges ? args.m : args.ldg, count, args.m,
                           args.row_scale ? args.row_scale + row + i : nullptr, i, panels.get());
    }
    const int64_t ahead = std::clamp<int64_t>(end - row - rows, 0, 32);
    float* to = out;
    for (int64_t t = 0; t < args.num_lefts; ++t)
      for (int64_t first = 0; first < args.lefts[t].k; first += cut.range) {
        const int64_t width = std::min(cut.range, args.lefts[t].k - first), tall = padded_to(width, 16);
        if (args.lefts[t].half)
          turn_half_rows<Form, uint16_t>(args.lefts[t], row, rows, first, width, ahead, turned.get());
        else
          turn_half_rows<Form, float>(args.lefts[t], row, rows, first, width, ahead, turned.get());
        for (int64_t col = 0; col < cut.width; col += 32)
          for (int64_t i = 0; i < tall; i += 32)
            unit.multiply({turned.get() + i * pairs, pairs, tall - i > 16 ? 2 : 1, panels.get() + col * pairs,
                           pairs * half_panel, cut.width - col > half_panel ? 2 : 1, used, to + i * cut.width + col,
                           cut.width, row != begin});
        to += tall * cut.width;
      }
  }
}

inline void contract_half(const half_contraction& args) {
  const half_unit& unit = find_half_unit();
  const half_contraction_cut cut(args);
  const int64_t floats = checked_mul(cut.height, cut.width);
  column_sums sums(args.col_sum != nullptr, cut.slabs, args.m);
  const float_buffer slabs = make_buffer(checked_mul(std::max<int64_t>(1, cut.slabs), floats));
  if (cut.slabs == 0) std::fill_n(slabs.get(), floats, 0.0f);
  parallel_chunks(cut.slabs, [&](int64_t slab) {
    const half_session session(unit);
    float* out = slabs.get() + slab * floats;
    unit.form() == half_form::instructions
        ? contract_half_slab<half_form::instructions>(session, args, cut, slab, out, sums.row(slab))
        : contract_half_slab<half_form::integers>(session, args, cut, slab, out, sums.row(slab));
  });
  parallel_ranges(cut.height, 32, [&](int64_t begin, int64_t end) {
    float* total = slabs.get();
    for (int64_t s = 1; s < cut.slabs; ++s) {
      const float* more = slabs.get() + s * floats;
      for (int64_t e = begin * cut.width; e < end * cut.width; ++e) total[e] += more[e];
    }
  });
  const float* from = slabs.get();
  for (int64_t t = 0; t < args.num_lefts; ++t) {
    const gw_left_f32& left = args.lefts[t];
    for (int64_t i = 0; i < left.k; ++i)
      if (args.m > 0) std::memcpy(left.dw + i * left.lddw, from + i * cut.width, size_t(args.m) * sizeof(float));
    from += padded_to(left.k, 16) * cut.width;
  }
  if (args.col_sum) sums.finish(args.col_sum);
}

}  // namespace gw
