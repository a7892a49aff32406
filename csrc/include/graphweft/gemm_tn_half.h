// dW1 = X1^T G, dW2 = X2^T G, ... of operands rounded to bfloat16, summed in float, as G^T X: blocks of G are turned
// while they are rounded, so that two rows of the sum are one word, and X, which is wider most often, is not. G is rows
// as they lie or sums over edges, made on the way. Rows are cut into slabs, which depend on sizes alone and are added
// up in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
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
  stored_rows g;
  const float* row_scale;           // [n] scales the rows of G in the product, null: none; without edges
  const gw_epilogue_f32* epilogue;  // of sums over edges; null: none
  float* col_sum;                   // [m] column sums of G, not scaled; null: not wanted
};

struct half_contraction_cut {
  // rows of X and G that are rounded at a time: those of 32 columns of G stay in the first cache beside 32 of X
  static constexpr int64_t block = 256, pairs = block / 2;
  static constexpr int64_t part = 32;    // rows of G that are summed at a time
  static constexpr int64_t range = 512;  // columns of X that are packed at a time
  int64_t width, height;                 // of the products, side by side, in whole tiles
  int64_t slabs, slab_rows;

  explicit half_contraction_cut(const half_contraction& args) : width(0), height(padded_to(args.m, 16)) {
    constexpr int64_t scratch_floats = int64_t{1} << 21, fewest = 8, most = 64;
    for (int64_t t = 0; t < args.num_lefts; ++t) width += padded_to(args.lefts[t].k, half_panel);
    const int64_t blocks = (args.n + block - 1) / block;
    const int64_t fit = std::clamp(scratch_floats / std::max<int64_t>(1, height * width), fewest, most);
    const int64_t wanted = std::clamp(blocks / 4, fewest, fit);  // adding up a slab takes as long as two blocks of rows
    slab_rows = std::max<int64_t>(1, (blocks + wanted - 1) / wanted) * block;
    slabs = (args.n + slab_rows - 1) / slab_rows;
  }
};

// Where column i of a left operand of k columns, stored in bfloat16, lies in its panels: of more than 16 columns that
// are left, 32 are paired by fours, as the processor does it with one instruction a panel.
constexpr int64_t paired_place(int64_t i, int64_t k) {
#if defined(__AVX512BW__)
  const int64_t base = i / 32 * 32, at = i % 32;
  if (k - base > half_panel) return base + at / 4 % 2 * half_panel + at / 8 * 4 + at % 4;
#endif
  return i;
}

// The first `lanes` columns of two rows, either of which may be null, at most 32 of them, into two panels, as
// paired_place has them; `apart` words from one to the next.
inline void pair_by_fours([[maybe_unused]] const uint16_t* one, [[maybe_unused]] const uint16_t* two,
                          [[maybe_unused]] int64_t lanes, [[maybe_unused]] uint32_t* to,
                          [[maybe_unused]] int64_t apart) {
#if defined(__AVX512BW__)
  const auto all = __mmask32(-1);  // as in transpose_words
  const auto some = __mmask32((uint64_t{1} << lanes) - 1);
  const __m512i zero = _mm512_setzero_si512(), first = one ? _mm512_maskz_loadu_epi16(some, one) : zero,
                second = two ? _mm512_maskz_loadu_epi16(some, two) : zero;
  _mm512_storeu_si512(to, _mm512_mask_unpacklo_epi16(zero, all, first, second));
  _mm512_storeu_si512(to + apart, _mm512_mask_unpackhi_epi16(zero, all, first, second));
#endif
}

// Columns [first, first + width) of rows [row, row + count) of X into panels [pairs][16], with zeros behind the last
// row; of rows in bfloat16 columns lie as paired_place says. `ahead` rows behind them are fetched as well.
template <half_form Form, class T>
void pack_half_rows(const gw_left_f32& left, int64_t row, int64_t count, int64_t first, int64_t width, int64_t ahead,
                    uint32_t* out) {
  constexpr int64_t pairs = half_contraction_cut::pairs;
  const stored_rows rows{left.x, left.ldx, left.half != 0, left.rows};
  const int64_t bytes = rows.bytes(width), far = rows_ahead(bytes), near = 4;
  const auto at = [&](int64_t i) { return i < count ? reinterpret_cast<const T*>(rows.at(row + i, first)) : nullptr; };
  for (int64_t i = 0; i < padded_to(count, 32); i += 2, out += half_panel) {
    const T *one = at(i), *two = at(i + 1);
    for (int64_t next = i + far; next < std::min(i + far + 2, count + ahead); ++next)
      fetch_row<2>(rows.at(row + next, first), bytes);
    for (int64_t next = i + near; next < std::min(i + near + 2, count + ahead); ++next)
      fetch_row<3>(rows.at(row + next, first), bytes);
    uint32_t* to = out;
    const auto put = [&](int64_t col, int64_t lanes) GW_INLINE_LAMBDA {
      const half_words words =
          pair_lanes<Form>(load_lanes(one ? one + col : nullptr, lanes), load_lanes(two ? two + col : nullptr, lanes));
      std::memcpy(to, &words, sizeof words);
      to += pairs * half_panel;
    };
    int64_t col = 0;
#if defined(__AVX512BW__)
    if constexpr (std::is_same_v<T, uint16_t>)
      for (; width - col > half_panel; col += 32, to += 2 * pairs * half_panel)
        pair_by_fours(one ? one + col : nullptr, two ? two + col : nullptr, std::min<int64_t>(32, width - col), to,
                      pairs * half_panel);
#endif
    for (; col + half_panel <= width; col += half_panel) put(col, half_panel);
    if (col < width) put(col, width - col);
  }
}

// Rows of G from `from` on, `count` at most 32 of them, turned: a tile of 16 x 16 words for every 16 columns, with
// zeros behind the last row; those of the columns that follow are a block's tiles apart.
template <half_form Form, class T>
void turn_half_rows(const T* from, int64_t ld, int64_t count, int64_t m, const float* scale, uint32_t* out) {
  constexpr int64_t pairs = half_contraction_cut::pairs;
  for (int64_t col = 0; col < m; col += 16) {
    const int64_t lanes = std::min<int64_t>(16, m - col);
    const auto row = [&](int64_t i) GW_INLINE_LAMBDA {
      auto found = load_lanes(i < count ? from + i * ld + col : nullptr, lanes);
      if constexpr (std::is_same_v<T, float>)
        if (scale && i < count) found *= scale[i];
      return found;
    };
    half_words words[16];
    for (int p = 0; p < 16; ++p) words[p] = pair_lanes<Form>(row(2 * p), row(2 * p + 1));
    transpose_words(words, out + col * pairs, 16);
  }
}

// Adds rows of bfloat16 numbers to column sums.
inline void add_half_rows(const uint16_t* from, int64_t ld, int64_t count, int64_t m, float* sums) {
  for (int64_t i = 0; i < count; ++i, from += ld)
    for (int64_t col = 0; col < m; col += half_panel) {
      const int64_t lanes = std::min<int64_t>(half_panel, m - col);
      const half_words more = __builtin_convertvector(load_lanes(from + col, lanes), half_words) << 16;
      const half_sums sum = load_lanes(sums + col, lanes) + half_sums(more);
      std::memcpy(sums + col, &sum, size_t(lanes) * sizeof(float));
    }
}

// Rows [row, row + count) of G, turned.
template <half_form Form>
void turn_block(const half_contraction& args, int64_t row, int64_t count, float* col_sum, uint16_t* made,
                uint32_t* turned) {
  constexpr int64_t part = half_contraction_cut::part;
  const gw_epilogue_f32 none{};
  const gw_epilogue_f32& stages = args.epilogue ? *args.epilogue : none;
  for (int64_t i = 0; i < count; i += part, row += part, turned += part / 2 * half_panel) {
    const int64_t rows = std::min(part, count - i);
    if (args.edges) {
      sum_rows({*args.edges, args.g.x, args.g.ld, args.m, stages, col_sum, true, args.g.half}, row, row + rows, Form,
               made, args.m);
      turn_half_rows<Form, uint16_t>(made, args.m, rows, args.m, nullptr, turned);
      continue;
    }
    if (args.g.half) {
      const auto* const g = reinterpret_cast<const uint16_t*>(args.g.at(row));
      if (col_sum) add_half_rows(g, args.g.ld, rows, args.m, col_sum);
      turn_half_rows<Form, uint16_t>(g, args.g.ld, rows, args.m, nullptr, turned);
      continue;
    }
    const auto* const g = reinterpret_cast<const float*>(args.g.at(row));
    if (col_sum) add_rows(g, args.g.ld, rows, args.m, col_sum);
    turn_half_rows<Form, float>(g, args.g.ld, rows, args.m, args.row_scale ? args.row_scale + row : nullptr, turned);
  }
}

// What a thread rounds a block of rows into.
struct half_blocks {
  word_buffer turned, panels;  // of G, and of one range of X
  word_buffer made;            // rows of G

  void make(const half_contraction& args, const half_contraction_cut& cut) {
    if (turned) return;
    int64_t widest = 0;
    for (int64_t t = 0; t < args.num_lefts; ++t) widest = std::max(widest, std::min(args.lefts[t].k, cut.range));
    turned = claim_words(cut.height * cut.pairs);
    panels = claim_words(padded_to(widest, half_panel) * cut.pairs);
    made = claim_words(args.edges ? (cut.part * args.m + 1) / 2 : 0);
  }
};

// One slab's products into out[height][width].
template <half_form Form>
void contract_half_slab(const half_session& unit, const half_contraction& args, const half_contraction_cut& cut,
                        int64_t slab, const half_blocks& room, float* out, float* col_sum) {
  constexpr int64_t block = cut.block, pairs = cut.pairs;
  uint32_t *const turned = room.turned.get(), *const panels = room.panels.get();
  auto* const made = reinterpret_cast<uint16_t*>(room.made.get());
  const int64_t begin = slab * cut.slab_rows, end = std::min(args.n, begin + cut.slab_rows);
  for (int64_t row = begin; row < end; row += block) {
    const int64_t rows = std::min(block, end - row), used = padded_to((rows + 1) / 2, 16);
    turn_block<Form>(args, row, rows, col_sum, made, turned);
    const int64_t ahead = end - row - rows;
    float* to = out;
    for (int64_t t = 0; t < args.num_lefts; ++t)
      for (int64_t first = 0; first < args.lefts[t].k; first += cut.range) {
        const int64_t width = std::min(cut.range, args.lefts[t].k - first), wide = padded_to(width, half_panel);
        if (args.lefts[t].half)
          pack_half_rows<Form, uint16_t>(args.lefts[t], row, rows, first, width, ahead, panels);
        else
          pack_half_rows<Form, float>(args.lefts[t], row, rows, first, width, ahead, panels);
        for (int64_t i = 0; i < cut.height; i += 32)
          for (int64_t col = 0; col < wide; col += 32) {
            unit.multiply({turned + i * pairs, half_panel, half_panel * half_panel, pairs * half_panel,
                           cut.height - i > 16 ? 2 : 1, panels + col * pairs, pairs * half_panel,
                           wide - col > half_panel ? 2 : 1, used, to + i * cut.width + col, cut.width, row != begin});
          }
        to += wide;
      }
  }
}

// Adds slabs of [height][width] up in their order, into the first, and puts the products where they belong.
inline void finish_contraction(const half_contraction& args, int64_t num_slabs, int64_t width, int64_t floats,
                               float* slabs) {
  parallel_ranges(args.m, 32, [&](int64_t begin, int64_t end) {
    for (int64_t s = 1; s < num_slabs; ++s) {
      const float* more = slabs + s * floats;
      for (int64_t e = begin * width; e < end * width; ++e) slabs[e] += more[e];
    }
    int64_t at = 0;
    for (int64_t t = 0; t < args.num_lefts; at += padded_to(args.lefts[t++].k, half_panel)) {
      const gw_left_f32& left = args.lefts[t];
      for (int64_t i = 0; i < left.k; ++i) {
        const float* const from = slabs + at + (left.half ? paired_place(i, left.k) : i);
        for (int64_t j = begin; j < end; ++j) left.dw[i * left.lddw + j] = from[j * width];
      }
    }
  });
}

inline void contract_half(const half_contraction& args) {
  const half_unit& unit = find_half_unit();
  const half_contraction_cut cut(args);
  const int64_t floats = checked_mul(cut.height, cut.width);
  column_sums sums(args.col_sum != nullptr, cut.slabs, args.m);
  const float_buffer slabs = make_buffer(checked_mul(std::max<int64_t>(1, cut.slabs), floats));
  if (cut.slabs == 0) std::fill_n(slabs.get(), floats, 0.0f);
  std::vector<half_blocks> rooms(static_cast<size_t>(num_threads()));
  parallel_chunks(cut.slabs, [&](int64_t slab) {
    const half_session session(unit);
    half_blocks& room = rooms[size_t(thread_id())];
    room.make(args, cut);
    float* out = slabs.get() + slab * floats;
    unit.form() == half_form::instructions
        ? contract_half_slab<half_form::instructions>(session, args, cut, slab, room, out, sums.row(slab))
        : contract_half_slab<half_form::integers>(session, args, cut, slab, room, out, sums.row(slab));
  });
  finish_contraction(args, cut.slabs, cut.width, floats, slabs.get());
  if (args.col_sum) sums.finish(args.col_sum);
}

}  // namespace gw
