// Y = epilogue(X W) for a tall X and a W of few columns: W is packed once into panels, a tile of Y stays in registers
// while X streams through, and the epilogue is applied to the tile before its one store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "graphweft/epilogue.h"
#include "graphweft/lines.h"
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
};

// Rows that will be read soon. Their lines are fetched while something is computed, a few at every look, so that
// neither the sums nor the memory waits for the other. A core has few fetches under way: many at once would make it
// wait.
class row_queue {
 public:
  static constexpr int64_t stride = 4;  // of a product's inner dimension between two looks
  struct entry {
    const char* at;
    int64_t bytes;
  };

  // `bytes`: of all entries; `steps`: how often look() will be called. Lines are taken at the nearest whole number a
  // look: those that are left at the end are few, and waiting for memory from the beginning costs more.
  row_queue(const entry* first, const entry* end, int64_t bytes, int64_t steps) : next_(first), end_(end) {
    const int64_t lines = bytes / line_bytes + (end - first) / 2;  // about: rows begin within lines
    rate_ = std::max<int64_t>(1, (lines + steps / 2) / steps);
  }

  GW_INLINE void look() { fetch(rate_); }
  void rest() { fetch(std::numeric_limits<int64_t>::max()); }

 private:
  GW_INLINE void fetch(int64_t lines) {
    for (; lines > 0; --lines, line_ += line_bytes) {
      if (line_ >= row_end_) {
        if (next_ == end_) return;
        line_ = next_->at - reinterpret_cast<uintptr_t>(next_->at) % line_bytes;
        row_end_ = next_->at + next_->bytes;
        ++next_;
      }
      __builtin_prefetch(line_, 0, 2);
    }
  }

  const entry *next_, *end_;
  int64_t rate_ = 1;                                 // lines a look
  const char *line_ = nullptr, *row_end_ = nullptr;  // of the row under way
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
  float* partial;              // [rows, padded] sums of the inner blocks before this one; null when there is just one
  bool first, last;            // of the inner blocks
  float* col_sum;              // the chunk's partial column sums, or null
  row_queue* ahead = nullptr;  // what to fetch meanwhile; null: the rows that follow
  bool streams = false;        // Y is written past the cache
};

// acc = X[rows of the tile, depth columns] * packed weights. `line(at)` is called for every line of the rows, `look()`
// several times meanwhile.
template <int Rows, int Vectors, int Lanes, class Line, class Look>
__attribute__((always_inline)) inline void gemm_tile(const float* x, int64_t ldx, int64_t depth, const float* weights,
                                                     Line&& line, Look&& look,
                                                     typename float_lanes<Lanes>::vec (&acc)[Rows][Vectors]) {
  using io = float_lanes<Lanes>;
  constexpr int step = 16;  // one cache line of each row
#pragma GCC unroll 32
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) acc[r][v] = typename io::vec{};
  int64_t at = 0;
  for (; at + step <= depth; at += step) {
    line(at);
    for (int64_t part = at; part < at + step; part += row_queue::stride) {
      look();
#pragma GCC unroll 4
      for (int s = 0; s < row_queue::stride; ++s) {
        typename io::vec w[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) w[v] = io::load(weights + v * Lanes);
#pragma GCC unroll 32
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
          for (int v = 0; v < Vectors; ++v) acc[r][v] += x[r * ldx + part + s] * w[v];
        weights += Vectors * Lanes;
      }
    }
  }
  line(at);
  look();
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
  // Past the cache; y is at the beginning of a line, ld whole lines, and no lane is padding.
  __attribute__((always_inline)) inline void stream(float* y, int64_t ld) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) io::stream(y + r * ld + v * Lanes, t[r][v]);
  }
  __attribute__((always_inline)) inline void store(float* y, int64_t ld, int tail) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors - 1; ++v) io::store(y + r * ld + v * Lanes, t[r][v]);
      io::store_part(y + r * ld + (Vectors - 1) * Lanes, t[r][Vectors - 1], tail);
    }
  }

  // The addend, of which the last rows of the tile may have none.
  __attribute__((always_inline)) inline void add_rows(const gw_epilogue_f32& stages, int64_t row, int64_t col,
                                                      int tail) {
    const float* at = stages.addend + row * stages.ld_addend + col;
    if (has_addend(stages, row + Rows - 1))
      return combine(at, stages.ld_addend, tail, [](vec a, vec b) { return a + b; });
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
      if (!has_addend(stages, row + r)) continue;
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v)
        t[r][v] += v < Vectors - 1 ? io::load(at + r * stages.ld_addend + v * Lanes)
                                   : io::load_part(at + r * stages.ld_addend + v * Lanes, tail);
    }
  }

  // The stages in the order of gw_epilogue_f32, each over the whole tile.
  __attribute__((always_inline)) inline void apply(const gw_epilogue_f32& stages, int64_t row, int64_t col, int tail,
                                                   float* col_sum) {
    if (stages.row_scale) scale_rows(stages.row_scale + row);
    if (stages.bias) combine(stages.bias + col, 0, tail, [](vec a, vec b) { return a + b; });
    if (has_addend(stages, row)) add_rows(stages, row, col, tail);
    if (stages.relu) relu();
    if (stages.mask)
      combine(stages.mask + row * stages.ld_mask + col, stages.ld_mask, tail,
              [](vec a, vec b) { return b > 0.0f ? a : vec{}; });
    if (col_sum) add_to(col_sum + col, tail);
    if (stages.post_scale) scale_rows(stages.post_scale + row);
  }
};

// Brings the lines of a tile's rows of a matrix into the cache, to be read or written.
template <int Rows, int Vectors, int Lanes, bool Written>
__attribute__((always_inline)) inline void fetch_tile(const float* at, int64_t ld) {
#pragma GCC unroll 32
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) __builtin_prefetch(at + r * ld + v * Lanes, int(Written));
}

// What the stages will read of a tile's rows.
template <int Rows, int Vectors, int Lanes>
__attribute__((always_inline)) inline void fetch_operands(const gw_epilogue_f32& stages, int64_t row, int64_t col) {
  if (has_addend(stages, row))
    fetch_tile<Rows, Vectors, Lanes, false>(stages.addend + row * stages.ld_addend + col, stages.ld_addend);
  if (stages.mask) fetch_tile<Rows, Vectors, Lanes, false>(stages.mask + row * stages.ld_mask + col, stages.ld_mask);
}

// Runs tiles of `Rows` rows over [row, end) of the block; returns the first row that is left over.
template <int Rows, int Vectors, int Lanes, bool Queued>
int64_t gemm_rows(const gemm_block& block, int64_t row, int64_t end) {
  using io = float_lanes<Lanes>;
  const gemm_shape& shape = *block.shape;
  const panel& columns = block.columns;
  const int tail = columns.width - (Vectors - 1) * Lanes;
  const bool streams = block.streams && tail == Lanes;
  for (; row + Rows <= end; row += Rows) {
    output_tile<Rows, Vectors, Lanes> tile;
    float* out = shape.y + row * shape.ldy + columns.first;
    if (block.last && !streams) fetch_tile<Rows, Vectors, Lanes, true>(out, shape.ldy);
    if (block.last && shape.epilogue) fetch_operands<Rows, Vectors, Lanes>(*shape.epilogue, row, columns.first);
    const float* const x = block.x + (row - block.row) * block.ldx + block.depth_first;
    const auto line = [&](int64_t at) GW_INLINE_LAMBDA {
      if constexpr (!Queued) {
#pragma GCC unroll 32
        for (int r = 0; r < Rows; ++r) __builtin_prefetch(x + (r + Rows) * block.ldx + at);
      }
    };
    const auto look = [&]() GW_INLINE_LAMBDA {
      if constexpr (Queued) block.ahead->look();
    };
    gemm_tile<Rows, Vectors, Lanes>(x, block.ldx, block.depth, block.weights, line, look, tile.t);
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
    streams ? tile.stream(out, shape.ldy) : tile.store(out, shape.ldy, tail);
  }
  return row;
}

// More rows than 12 would need more row addresses than there are registers.
constexpr int gemm_tile_rows(int vectors) { return std::min(tile_rows(vectors), 12); }

template <int Vectors, int Lanes, bool Queued>
void gemm_panel_of(const gemm_block& block) {
  const int64_t end = block.row + block.rows;
  int64_t row = gemm_rows<gemm_tile_rows(Vectors), Vectors, Lanes, Queued>(block, block.row, end);
  row = gemm_rows<4, Vectors, Lanes, Queued>(block, row, end);
  gemm_rows<1, Vectors, Lanes, Queued>(block, row, end);
}

template <int Vectors, int Lanes>
void gemm_panel(const gemm_block& block) {
#ifndef GW_PLAIN_ROWS
  if (block.ahead) return gemm_panel_of<Vectors, Lanes, true>(block);
#endif
  gemm_panel_of<Vectors, Lanes, false>(block);
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

// W[k, m], or its transpose stored [m, k], into rows [first, first + k) of panels: panel p starts at depth * offset(p)
// and is [depth][padded].
inline void gemm_pack_part(const std::vector<panel>& panels, int64_t depth, int64_t first, int64_t k, const float* w,
                           int64_t ldw, bool transposed, float* packed) {
  for (const panel& columns : panels) {
    const int padded = columns.padded();
    float* out = packed + depth * columns.offset + first * padded;
    for (int64_t i = 0; i < k; ++i, out += padded) {
      for (int j = 0; j < columns.width; ++j)
        out[j] = transposed ? w[(columns.first + j) * ldw + i] : w[i * ldw + columns.first + j];
      for (int j = columns.width; j < padded; ++j) out[j] = 0.0f;
    }
  }
}

// W[k, m], or its transpose stored [m, k], into panels of depth k.
inline void gemm_pack(const std::vector<panel>& panels, int64_t k, const float* w, int64_t ldw, bool transposed,
                      float* packed) {
  gemm_pack_part(panels, k, 0, k, w, ldw, transposed, packed);
}

// How a product is cut. Chunks of rows depend on n alone; the sums over k do not depend on chunks at all.
struct gemm_cut {
  static constexpr int64_t deepest = 768;  // inner block: its panel and the rows beside it stay in the second cache
  int64_t blocks, depth;                   // of the inner dimension
  int64_t rows;                            // that one panel after the other passes over
  int64_t grain, chunks;

  gemm_cut(int64_t n, int64_t k)
      : blocks(std::max<int64_t>(1, (k + deepest - 1) / deepest)),
        depth(((k + blocks - 1) / blocks + 15) / 16 * 16),
        rows(n >= 768 ? 96 : 24),
        grain(std::max<int64_t>(1, (n + 512 * rows - 1) / (512 * rows)) * rows),
        chunks((n + grain - 1) / grain) {}
};

// A stretch [first, first + k) of the inner dimension.
struct inner_part {
  int64_t first, k;
  bool begins, ends;  // whether it is the first of the product, and the last
};

// Rows [row, row + count) of a part's product, from x, where row `row` of its columns of X is. `cut` is that of the
// part.
inline void gemm_block_rows(const gemm_shape& shape, const inner_part& part, const gemm_cut& cut,
                            const std::vector<panel>& panels, const float* packed, const float* x, int64_t ldx,
                            int64_t row, int64_t count, float* partial, float* col_sum, row_queue* ahead,
                            bool streams = false) {
  for (int64_t b = 0; b < cut.blocks; ++b) {
    const int64_t at = b * cut.depth;
    const bool first = part.begins && b == 0, last = part.ends && b == cut.blocks - 1;
    for (const panel& columns : panels)
      gemm_run({&shape, packed + shape.k * columns.offset + (part.first + at) * columns.padded(), columns, x, ldx, row,
                count, at, std::min(cut.depth, part.k - at), partial ? partial + cut.rows * columns.offset : nullptr,
                first, last, col_sum, ahead, streams});
  }
}

// The product of rows as they lie.
inline void gemm_nn(const gemm_shape& shape, const float* w, int64_t ldw, bool transposed) {
  const std::vector<panel> panels = cut_panels(shape.m);
  const int64_t width = padded_width(panels);
  const float_buffer packed = make_buffer(checked_mul(shape.k, width));
  gemm_pack(panels, shape.k, w, ldw, transposed, packed.get());
  const gemm_cut cut(shape.n, shape.k);
  float* col_sum = shape.epilogue ? shape.epilogue->col_sum : nullptr;
  column_sums sums(col_sum != nullptr, cut.chunks, shape.m);
  parallel_chunks(cut.chunks, [&](int64_t chunk) {
    const float_buffer partial = cut.blocks > 1 ? make_buffer(cut.rows * width) : float_buffer();
    const int64_t end = std::min(shape.n, (chunk + 1) * cut.grain);
    for (int64_t row = chunk * cut.grain; row < end; row += cut.rows)
      gemm_block_rows(shape, {0, shape.k, true, true}, cut, panels, packed.get(), shape.x + row * shape.ldx, shape.ldx,
                      row, std::min(cut.rows, end - row), partial.get(), sums.row(chunk), nullptr);
  });
  if (col_sum) sums.finish(col_sum);
}

}  // namespace gw
