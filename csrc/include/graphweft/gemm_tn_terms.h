// dW1 = X1^T G, dW2 = X2^T G, ... where G is made on the way: block of rows by block of rows, in the core's own cache,
// as sums over edges with an epilogue, and contracted at once with all left operands. G is never stored as a whole.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "graphweft/edge_sums.h"
#include "graphweft/gemm_tn.h"

namespace gw {

struct gemm_tn_terms_args {
  int64_t m;
  const gw_left_f32* lefts;
  int64_t num_lefts;
  const gw_adjacency* edges;
  const float* x;
  int64_t ldx;
  const gw_epilogue_f32* epilogue;  // null: none
};

// Slabs of rows are contracted apart and added up in slab order.
struct gemm_tn_terms_cut {
  static constexpr int64_t block_rows = 128;  // G's and X's blocks stay in the second cache
  int64_t slabs, slab_rows;

  gemm_tn_terms_cut(int64_t n, int64_t floats) {
    constexpr int64_t scratch_floats = int64_t{1} << 21, fewest = 8, most = 64;
    const int64_t blocks = (n + block_rows - 1) / block_rows;
    const int64_t wanted = std::clamp(scratch_floats / std::max<int64_t>(1, floats), fewest, most);
    slab_rows = std::max<int64_t>(1, (blocks + wanted - 1) / wanted) * block_rows;
    slabs = (n + slab_rows - 1) / slab_rows;
  }
};

// Rows [begin, end) into out, the left operands' products one below the other, [sum of k][width].
inline void contract_slab(const gemm_tn_terms_args& args, const std::vector<panel>& panels, int64_t width,
                          int64_t begin, int64_t end, float* out, float* col_sum) {
  constexpr int64_t block_rows = gemm_tn_terms_cut::block_rows;
  const gw_epilogue_f32 none{};
  const edge_sums sums{*args.edges, args.x, args.ldx, args.m, args.epilogue ? *args.epilogue : none, col_sum, true};
  int64_t widest = 0;
  for (int64_t t = 0; t < args.num_lefts; ++t)
    if (args.lefts[t].rows || args.lefts[t].half) widest = std::max(widest, args.lefts[t].k);
  const float_buffer picked = make_buffer(block_rows * widest), made = make_buffer(block_rows * width);
  if (width > args.m) std::fill_n(made.get(), block_rows * width, 0.0f);  // lanes beyond m stay zero
  for (int64_t row = begin; row < end; row += block_rows) {
    const int64_t rows = std::min(block_rows, end - row);
    sum_rows(sums, row, row + rows, made.get(), width);
    float* to = out;
    for (int64_t t = 0; t < args.num_lefts; to += args.lefts[t++].k * width) {
      const gw_left_f32& left = args.lefts[t];
      const stored_rows from{left.x, left.ldx, left.half != 0, left.rows};
      const bool picks = left.rows || left.half, more = row + block_rows + rows <= end;
      if (picks) from.pick(row, rows, 0, left.k, picked.get());
      const float* a = picks ? picked.get() : reinterpret_cast<const float*>(from.at(row));
      for (const panel& columns : panels)
        gemm_tn_run(
            columns,
            {a, picks ? left.k : left.ldx, made.get() + columns.offset, width, rows, left.k, to + columns.offset, width,
             row == begin, columns.offset == 0 && !picks && more, static_cast<const float*>(left.x),
             left.rows && !left.half && columns.offset == 0 && more ? left.rows + row + block_rows : nullptr,
             left.ldx});
    }
  }
}

inline void gemm_tn_terms(const gemm_tn_terms_args& args) {
  const int64_t n = args.edges->num_rows;
  int64_t k = 0;
  for (int64_t t = 0; t < args.num_lefts; ++t) k += args.lefts[t].k;
  const std::vector<panel> panels = cut_panels(args.m);
  const int64_t width = padded_width(panels), floats = checked_mul(k, width);
  const gemm_tn_terms_cut cut(n, floats);
  float* col_sum = args.epilogue ? args.epilogue->col_sum : nullptr;
  column_sums sums(col_sum != nullptr, cut.slabs, args.m);
  const float_buffer slabs = make_buffer(checked_mul(std::max<int64_t>(1, cut.slabs), floats));
  if (cut.slabs == 0) std::fill_n(slabs.get(), floats, 0.0f);
  parallel_chunks(cut.slabs, [&](int64_t slab) {
    contract_slab(args, panels, width, slab * cut.slab_rows, std::min(n, (slab + 1) * cut.slab_rows),
                  slabs.get() + slab * floats, sums.row(slab));
  });
  parallel_ranges(k, 32, [&](int64_t begin, int64_t end) {
    float* total = slabs.get();
    for (int64_t s = 1; s < cut.slabs; ++s) {
      const float* more = slabs.get() + s * floats;
      for (int64_t e = begin * width; e < end * width; ++e) total[e] += more[e];
    }
  });
  const float* from = slabs.get();
  for (int64_t t = 0; t < args.num_lefts; ++t)
    for (int64_t i = 0; i < args.lefts[t].k; ++i, from += width)
      if (args.m > 0) std::memcpy(args.lefts[t].dw + i * args.lefts[t].lddw, from, size_t(args.m) * sizeof(float));
  if (col_sum) sums.finish(col_sum);
}

}  // namespace gw
