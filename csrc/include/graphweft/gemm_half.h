// Y = epilogue(X1 W1 + X2 W2 + ...) of operands rounded to bfloat16, summed in float. A block of rows of [X1 X2 ...] is
// rounded once, in the core's own cache, and passes all panels of W. Such products take a fraction of the time in which
// the rows of tables come from memory, so those are fetched by the loops that read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/gemm_terms.h"
#include "graphweft/half_unit.h"

namespace gw {

// Where the terms' columns begin in a row of pairs; a term of an odd number of columns has a zero behind them.
struct half_columns {
  std::vector<int64_t> first;
  int64_t pairs = 0;   // of a row, whole tiles
  int64_t summed = 0;  // columns of the widest term that is summed over edges

  half_columns(const gw_term_f32* terms, int64_t num_terms) {
    for (int64_t t = 0; t < num_terms; ++t) {
      first.push_back(pairs);
      pairs += (terms[t].k + 1) / 2;
      if (terms[t].edges) summed = std::max(summed, terms[t].k);
    }
    pairs = padded_to(pairs, 16);
  }
};

// Rows [row, row + count) of the terms, side by side and rounded; `sums` is room for those of one term.
inline void put_half_terms(half_form form, const gw_term_f32* terms, int64_t num_terms, const half_columns& columns,
                           int64_t n, int64_t row, int64_t count, float* sums, uint32_t* out) {
  for (int64_t t = 0; t < num_terms; ++t) {
    const gw_term_f32& term = terms[t];
    const stored_rows rows = rows_of(term);
    const int64_t bytes = rows.bytes(term.k), first = columns.first[size_t(t)];
    const auto place = [&](int64_t i) { return reinterpret_cast<uint16_t*>(out + i * columns.pairs + first); };
    if (!term.edges) {
      const int64_t ahead = std::clamp<int64_t>(8192 / std::max<int64_t>(1, bytes), 2, 16);
      for (int64_t i = 0; i < count; ++i) {
        if (row + i + ahead < n) fetch_row<3>(rows.at(row + i + ahead), bytes);
        if (term.half)
          std::memcpy(place(i), rows.at(row + i), size_t(bytes));
        else
          round_row(form, reinterpret_cast<const float*>(rows.at(row + i)), term.k, place(i));
      }
      continue;
    }
    gw_epilogue_f32 scaled{};
    scaled.row_scale = term.row_scale;
    sum_rows({*term.edges, term.x, term.ldx, term.k, scaled, nullptr, true, term.half != 0}, row, row + count, sums,
             term.k);
    if (term.kept) keep_rows(term, row, count, sums, term.k);
    for (int64_t i = 0; i < count; ++i) round_row(form, sums + i * term.k, term.k, place(i));
  }
}

// Finished sums of one panel's columns: where they are, and where they go.
struct half_output {
  const gemm_shape& shape;
  float* col_sum;  // the chunk's partial column sums, or null
  bool streams;

  template <int Rows, int Vectors>
  int64_t emit_rows(const float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int tail) const {
    constexpr int lanes = vf::lanes;
    for (; row + Rows <= end; row += Rows, c += Rows * ldc) {
      output_tile<Rows, Vectors, lanes> tile;
      for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v) tile.t[r][v] = float_lanes<lanes>::load(c + r * ldc + v * lanes);
      if (shape.epilogue) tile.apply(*shape.epilogue, row, col, tail, col_sum);
      float* out = shape.y + row * shape.ldy + col;
      streams&& tail == lanes ? tile.stream(out, shape.ldy) : tile.store(out, shape.ldy, tail);
    }
    return row;
  }
  template <int Vectors>
  void emit(const float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int64_t width) const {
    const int tail = int(width) - (Vectors - 1) * vf::lanes;
    const int64_t left = emit_rows<4, Vectors>(c, ldc, row, end, col, tail);
    emit_rows<1, Vectors>(c + (left - row) * ldc, ldc, left, end, col, tail);
  }
  // Rows [row, end) of columns [col, col + width), 16 at most.
  void write(const float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int64_t width) const {
    constexpr int most = half_panel / vf::lanes;
    const int vectors = int((width + vf::lanes - 1) / vf::lanes);
    if (vectors == 1) return emit<1>(c, ldc, row, end, col, width);
    if constexpr (most >= 2)
      if (vectors == 2) return emit<2>(c, ldc, row, end, col, width);
    if constexpr (most >= 4)
      vectors == 3 ? emit<3>(c, ldc, row, end, col, width) : emit<4>(c, ldc, row, end, col, width);
  }
};

// Rows [row, row + count) of the product, which lie rounded in `x`.
inline void multiply_half_rows(const half_session& unit, const uint32_t* x, const uint32_t* packed, int64_t pairs,
                               int64_t row, int64_t count, const half_output& output) {
  alignas(64) float sums[32 * 32];
  const int64_t m = output.shape.m, ldb = pairs * half_panel;
  for (int64_t col = 0; col < m; col += 32)
    for (int64_t i = 0; i < count; i += 32) {
      const int64_t rows = std::min<int64_t>(32, count - i);
      const int tall = rows > 16 ? 2 : 1, wide = m - col > half_panel ? 2 : 1;
      unit.multiply({x + i * pairs, pairs, tall, packed + col * pairs, ldb, wide, pairs, sums, 32, false});
      for (int p = 0; p < wide; ++p) {
        const int64_t first = col + p * half_panel;
        output.write(sums + p * half_panel, 32, row + i, row + i + rows, first,
                     std::min<int64_t>(half_panel, m - first));
      }
    }
}

inline void gemm_half_terms(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                            const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  const half_unit& unit = find_half_unit();
  const half_columns columns(terms, num_terms);
  const int64_t pairs = columns.pairs;
  const gemm_shape shape{n, 2 * pairs, m, nullptr, 0, y, ldy, epilogue};
  const word_buffer packed = make_words(checked_mul(padded_to(m, half_panel), pairs));
  for (int64_t t = 0; t < num_terms; ++t)
    pack_half(unit.form(), terms[t].w, terms[t].ldw, terms[t].w_transposed != 0, terms[t].k, m,
              columns.first[size_t(t)], pairs, packed.get());
  const gemm_cut cut(n, shape.k);
  const bool streams = streams_output(shape);
  float* col_sum = epilogue ? epilogue->col_sum : nullptr;
  column_sums sums(col_sum != nullptr, cut.chunks, m);
  parallel_chunks(cut.chunks, [&](int64_t chunk) {
    const half_session session(unit);
    const word_buffer joined = make_words(checked_mul(padded_to(cut.rows, 32), pairs));
    const float_buffer summed = make_buffer(checked_mul(cut.rows, columns.summed));
    const half_output output{shape, sums.row(chunk), streams};
    const int64_t end = std::min(n, (chunk + 1) * cut.grain);
    for (int64_t row = chunk * cut.grain; row < end; row += cut.rows) {
      const int64_t count = std::min(cut.rows, end - row);
      put_half_terms(unit.form(), terms, num_terms, columns, n, row, count, summed.get(), joined.get());
      multiply_half_rows(session, joined.get(), packed.get(), pairs, row, count, output);
    }
    finish_streams();
  });
  if (col_sum) sums.finish(col_sum);
}

}  // namespace gw
