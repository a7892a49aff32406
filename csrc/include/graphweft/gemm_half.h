// Y = epilogue(X1 W1 + X2 W2 + ...) of operands rounded to bfloat16, summed in float. A block of rows of [X1 X2 ...] is
// rounded once, in the core's own cache, and passes all panels of W, while rows of tables that the next block reads
// come from memory. Such products take less time than that, so the other rows are fetched by the loops that read them.
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
  int64_t summed = 0;  // columns of the widest term whose sums over edges are kept in float
  int64_t kept = 0;    // of the widest one whose sums are kept in bfloat16

  half_columns(const gw_term_f32* terms, int64_t num_terms) {
    for (int64_t t = 0; t < num_terms; ++t) {
      first.push_back(pairs);
      pairs += (terms[t].k + 1) / 2;
      if (terms[t].kept) summed = std::max(summed, terms[t].k);
      if (terms[t].half_kept) kept = std::max(kept, terms[t].k);
    }
    pairs = padded_to(pairs, 16);
  }
};

// Copies a row of `count` bfloat16 numbers.
GW_INLINE void copy_half_row(const uint16_t* from, int64_t count, uint16_t* to) {
#if defined(__AVX512BW__)
  for (; count >= 32; count -= 32, from += 32, to += 32) _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  const auto rest = __mmask32((uint64_t{1} << count) - 1);
  _mm512_mask_storeu_epi16(to, rest, _mm512_maskz_loadu_epi16(rest, from));
#else
  std::memcpy(to, from, size_t(count) * sizeof(uint16_t));
#endif
}

// Rounded sums of rows [row, row + count), `ld` numbers apart, to where they are kept; past the cache as one stretch
// where they are many. `room` is for count rows.
inline void keep_half_rows(const gw_term_f32& term, int64_t row, int64_t count, const uint16_t* from, int64_t ld,
                           uint16_t* room) {
  const int64_t bytes = term.k * int64_t(sizeof(uint16_t));
  uint16_t* const kept = term.half_kept + row * term.ld_kept;
  const bool streams = streams_rows(term.edges->num_rows * bytes, bytes) && term.ld_kept == term.k &&
                       count * bytes % 4 == 0 && reinterpret_cast<uintptr_t>(kept) % 4 == 0;
  uint16_t* const to = streams ? room : kept;
  for (int64_t i = 0; i < count; ++i) copy_half_row(from + i * ld, term.k, to + i * term.ld_kept);
  if (streams) stream_row(reinterpret_cast<const char*>(room), count * bytes, reinterpret_cast<char*>(kept));
}

// What a thread puts a block of rows together in.
struct half_room {
  word_buffer joined;  // the terms' rows side by side
  float_buffer sums;   // of one term, where they are kept as floats
  word_buffer kept;

  // Once a call; what lies between and behind the terms' columns stays zero.
  void make(const half_columns& columns, int64_t rows) {
    if (joined) return;
    joined = make_words(checked_mul(padded_to(rows, 32), columns.pairs));
    sums = make_buffer(checked_mul(rows, columns.summed));
    kept = claim_words((checked_mul(rows, columns.kept) + 1) / 2);
  }
};

// Sums over edges of rows [row, row + count), rounded, to `out` with `ld` numbers from row to row.
inline void put_half_sums(half_form form, const gw_term_f32& term, int64_t row, int64_t count, const half_room& room,
                          uint16_t* out, int64_t ld) {
  gw_epilogue_f32 scaled{};
  scaled.row_scale = term.row_scale;
  const edge_sums sums{*term.edges, term.x, term.ldx, term.k, scaled, nullptr, true, term.half != 0};
  if (!term.kept) {
    sum_rows(sums, row, row + count, form, out, ld);
    if (term.half_kept) keep_half_rows(term, row, count, out, ld, reinterpret_cast<uint16_t*>(room.kept.get()));
    return;
  }
  sum_rows(sums, row, row + count, room.sums.get(), term.k);
  keep_rows(term, row, count, room.sums.get(), term.k);
  for (int64_t i = 0; i < count; ++i) round_row(form, room.sums.get() + i * term.k, term.k, out + i * ld);
}

// Rows [row, row + count) of the terms, side by side and rounded.
inline void put_half_terms(half_form form, const gw_term_f32* terms, int64_t num_terms, const half_columns& columns,
                           int64_t n, int64_t row, int64_t count, const half_room& room, uint32_t* words) {
  const int64_t ld = 2 * columns.pairs;
  for (int64_t t = 0; t < num_terms; ++t) {
    const gw_term_f32& term = terms[t];
    uint16_t* out = reinterpret_cast<uint16_t*>(words + columns.first[size_t(t)]);
    if (term.edges) {
      put_half_sums(form, term, row, count, room, out, ld);
      continue;
    }
    const stored_rows rows = rows_of(term);
    const int64_t bytes = rows.bytes(term.k);
    const int64_t far = rows_ahead(bytes), near = 4;
    for (int64_t i = row; i < row + count; ++i, out += ld) {
      if (i + far < n) fetch_row<2>(rows.at(i + far), bytes);
      if (i + near < n) fetch_row<3>(rows.at(i + near), bytes);
      if (term.half)
        copy_half_row(reinterpret_cast<const uint16_t*>(rows.at(i)), term.k, out);
      else
        round_row(form, reinterpret_cast<const float*>(rows.at(i)), term.k, out);
    }
  }
}

// Finished sums of one panel's columns: where they are, and where they go.
struct half_output {
  const gemm_shape& shape;
  half_form form;
  uint16_t* half_y;  // Y in bfloat16, in place of that of the shape; null: in float
  float* col_sum;    // the chunk's partial column sums, or null
  bool streams;

  static constexpr bool both_panels = vf::lanes == half_panel;  // of a product are finished and rounded in registers

  // Rounds V vectors of row `row` from column `col` on to where they belong; `tail` lanes of the last one.
  template <int V, class Vector>
  GW_INLINE void put_rounded(const Vector (&t)[V], int64_t row, int64_t col, int tail) const {
    uint16_t* const out = half_y + row * shape.ldy + col;
#if defined(__AVX512F__)
    if constexpr (V == 2)
      if (streams && tail == vf::lanes && form == half_form::instructions)
        return _mm512_stream_si512(reinterpret_cast<__m512i*>(out), round_both(__m512(t[0]), __m512(t[1])));
#endif
    tail == vf::lanes ? store_rounded<V, true>(form, out, tail, t) : store_rounded<V, false>(form, out, tail, t);
  }
  template <int Rows, int Vectors>
  int64_t emit_rows(float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int tail) const {
    constexpr int lanes = vf::lanes;
    for (; row + Rows <= end; row += Rows, c += Rows * ldc) {
      output_tile<Rows, Vectors, lanes> tile;
      for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < Vectors; ++v) tile.t[r][v] = float_lanes<lanes>::load(c + r * ldc + v * lanes);
      if (shape.epilogue) tile.apply(*shape.epilogue, row, col, tail, col_sum);
      if (half_y) {
        if constexpr (both_panels)
          for (int r = 0; r < Rows; ++r) put_rounded<Vectors>(tile.t[r], row + r, col, tail);
        else
          tile.store(c, ldc, lanes);
        continue;
      }
      float* out = shape.y + row * shape.ldy + col;
      streams&& tail == lanes ? tile.stream(out, shape.ldy) : tile.store(out, shape.ldy, tail);
    }
    return row;
  }
  template <int Vectors>
  void emit(float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int64_t width) const {
    const int tail = int(width) - (Vectors - 1) * vf::lanes;
    const int64_t left = emit_rows<4, Vectors>(c, ldc, row, end, col, tail);
    emit_rows<1, Vectors>(c + (left - row) * ldc, ldc, left, end, col, tail);
  }
  // Applies the stages to rows [row, end) of columns [col, col + width), 16 at most; floats go to where they belong.
  void finish(float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int64_t width) const {
    constexpr int most = half_panel / vf::lanes;
    const int vectors = int((width + vf::lanes - 1) / vf::lanes);
    if (vectors == 1) return emit<1>(c, ldc, row, end, col, width);
    if constexpr (most >= 2)
      if (vectors == 2) return emit<2>(c, ldc, row, end, col, width);
    if constexpr (most >= 4)
      vectors == 3 ? emit<3>(c, ldc, row, end, col, width) : emit<4>(c, ldc, row, end, col, width);
  }
  // Rounds finished rows [row, end) of columns [col, col + width), 32 at most, to where they belong.
  void round(const float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int64_t width) const {
    uint16_t* out = half_y + row * shape.ldy + col;
    for (; row < end; ++row, c += ldc, out += shape.ldy) round_row(form, c, width, out);
  }
  // Rows [row, end) of columns [col, col + width), 32 at most, whose sums are c.
  void write(float* c, int64_t ldc, int64_t row, int64_t end, int64_t col, int64_t width) const {
    if constexpr (both_panels)
      return width > half_panel ? emit<2>(c, ldc, row, end, col, width) : emit<1>(c, ldc, row, end, col, width);
    for (int64_t p = 0; p < width; p += half_panel)
      finish(c + p, ldc, row, end, col + p, std::min<int64_t>(half_panel, width - p));
    if (half_y) round(c, ldc, row, end, col, width);
  }
};

// Whether Y in bfloat16 is written past the cache, as streams_output of floats.
inline bool streams_half_output(const gemm_shape& shape, const uint16_t* y) {
  const bool whole_lines = reinterpret_cast<uintptr_t>(y) % line_bytes == 0 && shape.ldy % 32 == 0;
  return whole_lines && shape.n * shape.m * int64_t(sizeof(uint16_t)) >= streamed_from;
}

// Rows [row, row + count) of the product, which lie rounded in `x`.
inline void multiply_half_rows(const half_session& unit, const uint32_t* x, const uint32_t* packed, int64_t pairs,
                               int64_t row, int64_t count, const half_output& output) {
  alignas(64) float sums[32 * 32];
  const int64_t m = output.shape.m, ldb = pairs * half_panel;
  for (int64_t i = 0; i < count; i += 32)
    for (int64_t col = 0; col < m; col += 32) {
      const int64_t rows = std::min<int64_t>(32, count - i);
      const int tall = rows > 16 ? 2 : 1, wide = m - col > half_panel ? 2 : 1;
      unit.multiply(
          {x + i * pairs, pairs, 16, 16 * pairs, tall, packed + col * pairs, ldb, wide, pairs, sums, 32, false});
      output.write(sums, 32, row + i, row + i + rows, col, std::min<int64_t>(32, m - col));
    }
}

// Y is `y`, or `half_y` in bfloat16.
inline void gemm_half_terms(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                            const gw_epilogue_f32* epilogue, float* y, uint16_t* half_y, int64_t ldy) {
  const half_unit& unit = find_half_unit();
  const half_columns columns(terms, num_terms);
  const int64_t pairs = columns.pairs;
  const gemm_shape shape{n, 2 * pairs, m, nullptr, 0, y, ldy, epilogue};
  const word_buffer packed = make_words(checked_mul(padded_to(m, half_panel), pairs));
  for (int64_t t = 0; t < num_terms; ++t)
    pack_half(unit.form(), terms[t].w, terms[t].ldw, terms[t].w_transposed != 0, terms[t].k, m,
              columns.first[size_t(t)], pairs, packed.get());
  const gemm_cut cut(n, shape.k);
  const int64_t block = std::min<int64_t>(cut.grain, 288);  // of rows; W comes into the first cache once for each
  const bool streams = half_y ? streams_half_output(shape, half_y) : streams_output(shape);
  float* col_sum = epilogue ? epilogue->col_sum : nullptr;
  column_sums sums(col_sum != nullptr, cut.chunks, m);
  std::vector<half_room> rooms(static_cast<size_t>(num_threads()));
  parallel_chunks(cut.chunks, [&](int64_t chunk) {
    const half_session session(unit);
    half_room& room = rooms[size_t(thread_id())];
    room.make(columns, block);
    const half_output output{shape, unit.form(), half_y, sums.row(chunk), streams};
    const int64_t end = std::min(n, (chunk + 1) * cut.grain);
    for (int64_t row = chunk * cut.grain; row < end; row += block) {
      const int64_t count = std::min(block, end - row);
      put_half_terms(unit.form(), terms, num_terms, columns, n, row, count, room, room.joined.get());
      multiply_half_rows(session, room.joined.get(), packed.get(), pairs, row, count, output);
    }
    finish_streams();
  });
  if (col_sum) sums.finish(col_sum);
}

}  // namespace gw
