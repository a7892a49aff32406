// Y = epilogue(X W) for a tall X and a W of few columns: W is packed once into panels, a tile of Y stays in registers
// while X streams through, and the epilogue is applied to the tile before its one store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "graphweft/epilogue.h"
#include "graphweft/panels.h"
#include "graphweft/parallel.h"

namespace gw {

struct gemm_shape {
  int64_t n, k, m;
  const float* x;
  int64_t ldx;
  float* y;
  int64_t ldy;
  const gw_epilogue_f32* epilogue;  // null: none
  const int64_t* rows = nullptr;    // row i of the product reads row rows[i] of x; null: row i
};

// One panel of packed W against a block of rows, over one block of the inner dimension.
struct gemm_block {
  const gemm_shape* shape;
  const float* weights;  // packed: [depth][panel.padded()], of this inner block
  panel columns;
  const float* x;  // row `row` of X
  int64_t ldx;
  int64_t row, rows;  // rows [row, row + rows) of X and Y
  int64_t depth_first, depth;
  float* partial;    // [rows, padded] sums of the inner blocks before this one; null when there is just one
  bool first, last;  // of the inner blocks
  float* col_sum;    // the chunk's partial column sums, or null
  const int64_t* ahead = nullptr;  // by row of this block: a row of the table to fetch for the next; null: rows follow
};

// acc = X[rows of the tile, depth columns] * packed weights. The rows at `next` are fetched, a line for every line that
// is used: as fast as the sums go, so that neither waits for the other.
template <int Rows, int Vectors, int Lanes>
__attribute__((always_inline)) inline void gemm_tile(const float* x, int64_t ldx, int64_t depth, const float* weights,
                                                     const float* const (&next)[Rows],
                                                     typename float_lanes<Lanes>::vec (&acc)[Rows][Vectors]) {
  using io = float_lanes<Lanes>;
  constexpr int step = 16;  // one cache line of each row
#pragma GCC unroll 32
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) acc[r][v] = typename io::vec{};
  int64_t at = 0;
  for (; at + step <= depth; at += step) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) __builtin_prefetch(next[r] + at);
#pragma GCC unroll 4
    for (int s = 0; s < step; ++s) {
      typename io::vec w[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) w[v] = io::load(weights + v * Lanes);
#pragma GCC unroll 32
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) acc[r][v] += x[r * ldx + at + s] * w[v];
      weights += Vectors * Lanes;
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < Rows; ++r) __builtin_prefetch(next[r] + at);
  for (; at < depth; ++at) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) acc[r][v] += x[r * ldx + at] * io::load(weights + v * Lanes);
    weights += Vectors * Lanes;
  }
}

// A tile of Y in registers: rows [row, row + Rows), columns [col, col + Vectors vectors), `tail` lanes of the last one.
template <int Rows, int Vectors, int Lanes>
struct output_tile {
  using io = float_lanes<Lanes>;
  using vec = typename io::vec;
  vec t[Rows][Vectors];

  // t = f(t, v-th vector of `at`), `at` the start of a matrix with `ld` between rows; 0 repeats one row.
  template <class F>
  __attribute__((always_inline)) inline void combine(const float* at, int64_t ld, int tail, F&& f) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors - 1; ++v) t[r][v] = f(t[r][v], io::load(at + r * ld + v * Lanes));
      t[r][Vectors - 1] = f(t[r][Vectors - 1], io::load_part(at + r * ld + (Vectors - 1) * Lanes, tail));
    }
  }
  __attribute__((always_inline)) inline void scale_rows(const float* scale) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) t[r][v] *= scale[r];
  }
  __attribute__((always_inline)) inline void relu() {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) t[r][v] = t[r][v] < 0.0f ? vec{} : t[r][v];  // NaN compares false and stays
  }
  __attribute__((always_inline)) inline void add_to(float* sums, int tail) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      vec total = t[0][v];
#pragma GCC unroll 32
      for (int r = 1; r < Rows; ++r) total += t[r][v];
      const int lanes = v == Vectors - 1 ? tail : Lanes;
      io::store_part(sums + v * Lanes, io::load_part(sums + v * Lanes, lanes) + total, lanes);
    }
  }
  __attribute__((always_inline)) inline void store(float* y, int64_t ld, int tail) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors - 1; ++v) io::store(y + r * ld + v * Lanes, t[r][v]);
      io::store_part(y + r * ld + (Vectors - 1) * Lanes, t[r][Vectors - 1], tail);
    }
  }

  // The stages in the order of gw_epilogue_f32, each over the whole tile.
  __attribute__((always_inline)) inline void apply(const gw_epilogue_f32& stages, int64_t row, int64_t col, int tail,
                                                   float* col_sum) {
    if (stages.row_scale) scale_rows(stages.row_scale + row);
    if (stages.bias) combine(stages.bias + col, 0, tail, [](vec a, vec b) { return a + b; });
    if (stages.addend)
      combine(stages.addend + row * stages.ld_addend + col, stages.ld_addend, tail, [](vec a, vec b) { return a + b; });
    if (stages.relu) relu();
    if (stages.mask)
      combine(stages.mask + row * stages.ld_mask + col, stages.ld_mask, tail,
              [](vec a, vec b) { return b > 0.0f ? a : vec{}; });
    if (col_sum) add_to(col_sum + col, tail);
    if (stages.post_scale) scale_rows(stages.post_scale + row);
  }
};

// Brings the lines of a tile's rows of a matrix into the cache.
template <int Rows, int Vectors, int Lanes>
__attribute__((always_inline)) inline void fetch_tile(const float* at, int64_t ld) {
#pragma GCC unroll 32
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) __builtin_prefetch(at + r * ld + v * Lanes, 1);
}

// Runs tiles of `Rows` rows over [row, end) of the block; returns the first row that is left over.
template <int Rows, int Vectors, int Lanes>
int64_t gemm_rows(const gemm_block& block, int64_t row, int64_t end) {
  using io = float_lanes<Lanes>;
  const gemm_shape& shape = *block.shape;
  const panel& columns = block.columns;
  const int tail = columns.width - (Vectors - 1) * Lanes;
  for (; row + Rows <= end; row += Rows) {
    output_tile<Rows, Vectors, Lanes> tile;
    float* out = shape.y + row * shape.ldy + columns.first;
    if (block.last) fetch_tile<Rows, Vectors, Lanes>(out, shape.ldy);
    const float* const x = block.x + (row - block.row) * block.ldx + block.depth_first;
    const float* next[Rows];
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
      next[r] = block.ahead ? shape.x + block.ahead[row - block.row + r] * shape.ldx + block.depth_first
                            : x + (r + Rows) * block.ldx;
    gemm_tile<Rows, Vectors, Lanes>(x, block.ldx, block.depth, block.weights, next, tile.t);
    if (block.partial) {
      float* sums = block.partial + (row - block.row) * Vectors * Lanes;
#pragma GCC unroll 32
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
          float* at = sums + (r * Vectors + v) * Lanes;
          if (!block.first) tile.t[r][v] += io::load(at);
          if (!block.last) io::store(at, tile.t[r][v]);
        }
      if (!block.last) continue;
    }
    if (shape.epilogue) tile.apply(*shape.epilogue, row, columns.first, tail, block.col_sum);
    tile.store(out, shape.ldy, tail);
  }
  return row;
}

// More rows than 12 would need more row addresses than there are registers.
template <int Vectors, int Lanes>
void gemm_panel(const gemm_block& block) {
  const int64_t end = block.row + block.rows;
  int64_t row = gemm_rows<std::min(tile_rows(Vectors), 12), Vectors, Lanes>(block, block.row, end);
  row = gemm_rows<4, Vectors, Lanes>(block, row, end);
  gemm_rows<1, Vectors, Lanes>(block, row, end);
}

inline void gemm_run(const gemm_block& block) {
  if (block.columns.lanes != vf::lanes) return gemm_panel<1, half_lanes>(block);
  switch (block.columns.vectors) {
    case 1:
      return gemm_panel<1, vf::lanes>(block);
    case 2:
      return gemm_panel<2, vf::lanes>(block);
#if defined(__AVX512F__)
    case 3:
      return gemm_panel<3, vf::lanes>(block);
    case 4:
      return gemm_panel<4, vf::lanes>(block);
#endif
    default:
      throw error(internal, "gemm_run: panel too wide");
  }
}

// W[k, m], or its transpose stored [m, k], into panels: panel p starts at k * offset(p) and is [k][padded].
inline void gemm_pack(const std::vector<panel>& panels, int64_t k, const float* w, int64_t ldw, bool transposed,
                      float* packed) {
  for (const panel& columns : panels) {
    const int padded = columns.padded();
    float* out = packed + k * columns.offset;
    for (int64_t i = 0; i < k; ++i, out += padded) {
      for (int j = 0; j < columns.width; ++j)
        out[j] = transposed ? w[(columns.first + j) * ldw + i] : w[i * ldw + columns.first + j];
      for (int j = columns.width; j < padded; ++j) out[j] = 0.0f;
    }
  }
}

// The product. Chunks of rows depend on n alone; the sums over k do not depend on chunks at all.
inline void gemm_nn(const gemm_shape& shape, const float* w, int64_t ldw, bool transposed) {
  constexpr int64_t deepest = 768;  // inner block: its panel and the rows beside it stay in the second-level cache
  const int64_t n = shape.n, k = shape.k;
  const std::vector<panel> panels = cut_panels(shape.m);
  const int64_t width = padded_width(panels);
  const float_buffer packed = make_buffer(checked_mul(k, width));
  gemm_pack(panels, k, w, ldw, transposed, packed.get());
  const int64_t blocks = std::max<int64_t>(1, (k + deepest - 1) / deepest);
  const int64_t depth = ((k + blocks - 1) / blocks + 15) / 16 * 16;
  const int64_t rows = n >= 768 ? 96 : 24;
  const int64_t grain = std::max<int64_t>(1, (n + 512 * rows - 1) / (512 * rows)) * rows;
  const int64_t chunks = (n + grain - 1) / grain;
  float* col_sum = shape.epilogue ? shape.epilogue->col_sum : nullptr;
  column_sums sums(col_sum != nullptr, chunks, shape.m);
  parallel_chunks(chunks, [&](int64_t chunk) {
    const float_buffer partial = blocks > 1 ? make_buffer(rows * width) : float_buffer();
    const float_buffer picked = shape.rows ? make_buffer(rows * k) : float_buffer();
    const int64_t end = std::min(n, (chunk + 1) * grain);
    for (int64_t row = chunk * grain; row < end; row += rows) {
      const int64_t count = std::min(rows, end - row), ldx = shape.rows ? k : shape.ldx;
      if (shape.rows) pick_rows(shape.x, shape.ldx, k, shape.rows, row, count, picked.get());
      const int64_t* const ahead = shape.rows && row + rows + count <= end ? shape.rows + row + rows : nullptr;
      const float* const x = shape.rows ? picked.get() : shape.x + row * shape.ldx;
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t at = b * depth;
        for (const panel& columns : panels)
          gemm_run({&shape, packed.get() + k * columns.offset + at * columns.padded(), columns, x, ldx, row, count, at,
                    std::min(depth, k - at), partial ? partial.get() + rows * columns.offset : nullptr, b == 0,
                    b == blocks - 1, sums.row(chunk), columns.first == 0 ? ahead : nullptr});
      }
    }
  });
  if (col_sum) sums.finish(col_sum);
}

}  // namespace gw
