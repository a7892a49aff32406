// dW = X^T G for tall X and G: rows are cut into slabs whose partial products are added in slab order, so the bits do
// not depend on the number of threads. A tile of dW stays in registers while a block of rows, resident in the cache,
// passes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "graphweft/epilogue.h"
#include "graphweft/panels.h"
#include "graphweft/parallel.h"
#include "graphweft/rows.h"
#include "graphweft/stored_rows.h"

namespace gw {

struct gemm_tn_args {
  int64_t n, k, m;
  const void* x;
  int64_t ldx;
  const float* g;
  int64_t ldg;
  const float* row_scale;  // [n] scales the rows of g in the product, null: none
  float* dw;
  int64_t lddw;
  float* col_sum;                 // [m] column sums of g itself (not scaled), null: not wanted
  const int64_t* rows = nullptr;  // row i of x is row rows[i] of a table; null: row i
  bool half = false;              // x is bfloat16
};

// The product P[p, q] = A^T B with A read element by element and B by vectors. (A, B) = (X, G), or (G, X) and dW = P^T
// where that wastes fewer lanes.
struct gemm_tn_plan {
  bool swapped;
  int64_t p, q;
  stored_rows a, b;
  bool picks;  // A's rows are copied, block by block
  std::vector<panel> panels;
  int64_t width;                // of a padded row of P
  bool pack;                    // B is copied, padded and scaled, block by block
  int64_t block_rows;           // rows per pass: A's and B's block stay in the second-level cache
  int64_t slabs, slab_rows;     // n cut for parallelism, partial sums kept per slab
  int64_t ranges, range_width;  // p cut for parallelism and for the cache
};

inline int64_t gemm_tn_cost(int64_t p, int64_t q) {
  int64_t halves = 0;
  for (const panel& columns : cut_panels(q)) halves += columns.padded() / half_lanes;
  return p * halves;
}

inline gemm_tn_plan plan_gemm_tn(const gemm_tn_args& args) {
  constexpr int64_t cache_floats = 49152, scratch_floats = int64_t{1} << 20, most_slabs = 64, enough_units = 32;
  gemm_tn_plan plan{};
  plan.swapped = gemm_tn_cost(args.m, args.k) < gemm_tn_cost(args.k, args.m);
  plan.p = plan.swapped ? args.m : args.k;
  plan.q = plan.swapped ? args.k : args.m;
  const stored_rows x{args.x, args.ldx, args.half, args.rows}, g{args.g, args.ldg, false};
  plan.a = plan.swapped ? g : x;
  plan.b = plan.swapped ? x : g;
  plan.picks = plan.a.rows || plan.a.half;
  plan.panels = cut_panels(plan.q);
  plan.width = padded_width(plan.panels);
  plan.pack = args.row_scale || plan.b.rows || plan.b.half || plan.width != plan.q;
  const int64_t widest = std::min<int64_t>(plan.p, 512);
  plan.block_rows = std::clamp<int64_t>(cache_floats / std::max<int64_t>(1, widest) / 8 * 8, 48, 256);
  const int64_t by_rows = (args.n + plan.block_rows - 1) / plan.block_rows;
  const int64_t by_scratch = scratch_floats / std::max<int64_t>(1, plan.p * plan.width);
  plan.slabs = std::max<int64_t>(1, std::min({by_rows, by_scratch, most_slabs}));
  plan.slab_rows = (by_rows + plan.slabs - 1) / plan.slabs * plan.block_rows;
  plan.slabs = std::max<int64_t>(1, (args.n + plan.slab_rows - 1) / std::max<int64_t>(1, plan.slab_rows));
  const int64_t by_cache = (plan.p + 511) / 512, by_units = (enough_units + plan.slabs - 1) / plan.slabs;
  const int64_t tiles = (plan.p + 23) / 24;
  plan.ranges = std::max<int64_t>(1, std::max(by_cache, std::min(by_units, tiles)));
  plan.range_width = ((plan.p + plan.ranges - 1) / plan.ranges + 23) / 24 * 24;
  plan.ranges = std::max<int64_t>(1, (plan.p + plan.range_width - 1) / std::max<int64_t>(1, plan.range_width));
  return plan;
}

// One panel of B's columns against a range of A's columns over a block of rows.
struct gemm_tn_block {
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  int64_t rows, p;
  float* out;  // [p][width], this panel's columns
  int64_t width;
  bool first;                    // out is set, else added to
  bool fetch;                    // bring the next block of A's rows into the cache
  const float* table = nullptr;  // where those lie when they do not follow: row ahead[i], this range's columns
  const int64_t* ahead = nullptr;
  int64_t ld_table = 0;
};

template <int Rows, int Vectors, int Lanes>
__attribute__((always_inline)) inline void gemm_tn_tile(const gemm_tn_block& block, int64_t at) {
  using io = float_lanes<Lanes>;
  typename io::vec acc[Rows][Vectors];
#pragma GCC unroll 32
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) acc[r][v] = typename io::vec{};
  const float* a = block.a + at;
  const float* b = block.b;
  const int64_t lda = block.lda, ldb = block.ldb;
  const int64_t ahead = block.fetch ? block.rows * lda : 0;
#pragma GCC unroll 2
  for (int64_t i = 0; i < block.rows; ++i, a += lda, b += ldb) {
    const float* const next = block.ahead ? block.table + block.ahead[i] * block.ld_table + at : a + ahead;
    __builtin_prefetch(next, 0, 2);
    if constexpr (Rows > 16) __builtin_prefetch(next + 16, 0, 2);
    typename io::vec w[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) w[v] = io::load(b + v * Lanes);
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) acc[r][v] += a[r] * w[v];
  }
  float* out = block.out + at * block.width;
#pragma GCC unroll 32
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      float* here = out + r * block.width + v * Lanes;
      if (!block.first) acc[r][v] += io::load(here);
      io::store(here, acc[r][v]);
    }
}

template <int Rows, int Vectors, int Lanes>
int64_t gemm_tn_rows(const gemm_tn_block& block, int64_t at) {
  for (; at + Rows <= block.p; at += Rows) gemm_tn_tile<Rows, Vectors, Lanes>(block, at);
  return at;
}

template <int Vectors, int Lanes>
void gemm_tn_panel(const gemm_tn_block& block) {
  constexpr int most = tile_rows(Vectors);
  int64_t at = gemm_tn_rows<most, Vectors, Lanes>(block, 0);
  if constexpr (most > 12) at = gemm_tn_rows<12, Vectors, Lanes>(block, at);
  if constexpr (most > 8) at = gemm_tn_rows<8, Vectors, Lanes>(block, at);
  at = gemm_tn_rows<4, Vectors, Lanes>(block, at);
  at = gemm_tn_rows<2, Vectors, Lanes>(block, at);
  gemm_tn_rows<1, Vectors, Lanes>(block, at);
}

inline void gemm_tn_run(const panel& columns, const gemm_tn_block& block) {
  if (columns.lanes != vf::lanes) return gemm_tn_panel<1, half_lanes>(block);
  switch (columns.vectors) {
    case 1:
      return gemm_tn_panel<1, vf::lanes>(block);
    case 2:
      return gemm_tn_panel<2, vf::lanes>(block);
#if defined(__AVX512F__)
    case 3:
      return gemm_tn_panel<3, vf::lanes>(block);
    case 4:
      return gemm_tn_panel<4, vf::lanes>(block);
#endif
    default:
      throw error(internal, "gemm_tn_run: panel too wide");
  }
}

// Rows [row, row + rows) of B, scaled and padded, panel after panel: panel p starts at block_rows * offset(p).
inline void gemm_tn_pack(const gemm_tn_plan& plan, const float* row_scale, int64_t row, int64_t rows, float* packed) {
  for (const panel& columns : plan.panels) {
    const int padded = columns.padded();
    float* out = packed + plan.block_rows * columns.offset;
    for (int64_t i = row; i < row + rows; ++i, out += padded) {
      const char* const in = plan.b.at(i, columns.first);
      const float scale = row_scale ? row_scale[i] : 1.0f;
      for (int v = 0; v < columns.vectors; ++v) {
        const int left = columns.width - v * columns.lanes;
        const int lanes = std::min(left, columns.lanes), first = v * columns.lanes;
        vf::vec t = plan.b.half ? bf16::load_part(reinterpret_cast<const uint16_t*>(in) + first, lanes)
                                : vf::load_part(reinterpret_cast<const float*>(in) + first, lanes);
        t *= scale;
        if (columns.lanes == vf::lanes)
          vf::store(out + v * columns.lanes, t);
        else
          vf::store_part(out, t, columns.lanes);
      }
    }
  }
}

// Row i of P, without padding, to its place in dW.
inline void gemm_tn_emit(const gemm_tn_plan& plan, const gemm_tn_args& args, int64_t i, const float* row) {
  for (const panel& columns : plan.panels) {
    const float* from = row + columns.offset;
    if (!plan.swapped) {
      std::memcpy(args.dw + i * args.lddw + columns.first, from, size_t(columns.width) * sizeof(float));
    } else {
      for (int j = 0; j < columns.width; ++j) args.dw[(columns.first + j) * args.lddw + i] = from[j];
    }
  }
}

// One slab of rows against one range of A's columns, into out[range][width].
inline void gemm_tn_unit(const gemm_tn_plan& plan, const gemm_tn_args& args, int64_t slab, int64_t range, float* out,
                         float* col_sum) {
  const float_buffer packed = plan.pack ? make_buffer(plan.block_rows * plan.width) : float_buffer();
  const float_buffer picked = plan.picks ? make_buffer(plan.block_rows * plan.range_width) : float_buffer();
  const int64_t from = range * plan.range_width;
  const int64_t p = std::min(plan.range_width, plan.p - from);
  const int64_t begin = slab * plan.slab_rows, end = std::min(args.n, begin + plan.slab_rows);
  for (int64_t row = begin; row < end; row += plan.block_rows) {
    const int64_t rows = std::min(plan.block_rows, end - row);
    if (plan.pack) gemm_tn_pack(plan, args.row_scale, row, rows, packed.get());
    if (plan.picks) plan.a.pick(row, rows, from, p, picked.get());
    const bool fetches = plan.a.rows && !plan.a.half && row + plan.block_rows + rows <= end;
    const float* const a = plan.picks ? picked.get() : reinterpret_cast<const float*>(plan.a.at(row, from));
    const int64_t lda = plan.picks ? p : plan.a.ld;
    if (col_sum) add_rows(args.g + row * args.ldg, args.ldg, rows, args.m, col_sum);
    for (const panel& columns : plan.panels) {
      const float* b = plan.pack ? packed.get() + plan.block_rows * columns.offset
                                 : reinterpret_cast<const float*>(plan.b.at(row, columns.first));
      const bool once = columns.offset == 0;
      gemm_tn_run(columns, {a, lda, b, plan.pack ? columns.padded() : plan.b.ld, rows, p, out + columns.offset,
                            plan.width, row == begin, once && !plan.picks, static_cast<const float*>(plan.a.x) + from,
                            fetches && once ? plan.a.rows + row + plan.block_rows : nullptr, plan.a.ld});
    }
  }
}

inline void gemm_tn(const gemm_tn_args& args) {
  if (args.n == 0 || args.k == 0 || args.m == 0) {
    for (int64_t i = 0; i < args.k; ++i) std::fill_n(args.dw + i * args.lddw, args.m, 0.0f);
  }
  const gemm_tn_plan plan = plan_gemm_tn(args);
  column_sums sums(args.col_sum != nullptr, plan.slabs, args.m);
  if (args.n > 0 && args.m > 0 && args.k > 0) {
    const int64_t slab_floats = plan.p * plan.width;
    const float_buffer slabs = plan.slabs > 1 ? make_buffer(checked_mul(plan.slabs, slab_floats)) : float_buffer();
    parallel_chunks(plan.slabs * plan.ranges, [&](int64_t unit) {
      const int64_t slab = unit / plan.ranges, range = unit % plan.ranges, from = range * plan.range_width;
      const int64_t p = std::min(plan.range_width, plan.p - from);
      const float_buffer local = slabs ? float_buffer() : make_buffer(p * plan.width);
      float* out = slabs ? slabs.get() + slab * slab_floats + from * plan.width : local.get();
      gemm_tn_unit(plan, args, slab, range, out, range == 0 ? sums.row(slab) : nullptr);
      if (local)
        for (int64_t i = 0; i < p; ++i) gemm_tn_emit(plan, args, from + i, out + i * plan.width);
    });
    if (slabs)
      parallel_ranges(plan.p, 64, [&](int64_t begin, int64_t end) {
        float* total = slabs.get();
        for (int64_t s = 1; s < plan.slabs; ++s) {
          const float* more = slabs.get() + s * slab_floats;
          for (int64_t e = begin * plan.width; e < end * plan.width; ++e) total[e] += more[e];
        }
        for (int64_t i = begin; i < end; ++i) gemm_tn_emit(plan, args, i, total + i * plan.width);
      });
  } else if (args.col_sum && args.m > 0) {
    for (int64_t s = 0; s < plan.slabs; ++s)
      add_rows(args.g + s * plan.slab_rows * args.ldg, args.ldg, std::min(plan.slab_rows, args.n - s * plan.slab_rows),
               args.m, sums.row(s));
  }
  if (args.col_sum) sums.finish(args.col_sum);
}

}  // namespace gw
