// Y = epilogue(X1 W1 + X2 W2 + ...): one product over the terms' columns side by side, so that no partial result is
// stored. A block of rows of one term after the other is multiplied: rows that lie as they are wanted where they lie,
// rows by index and sums over edges once they are put together in the core's own cache; the rows of tables that the
// next block needs are fetched meanwhile. How a term's rows lie changes no bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#ifndef GW_PLAIN_ROWS
#include "graphweft/edge_sums.h"
#endif
#include "graphweft/gemm.h"
#include "graphweft/lines.h"
#include "graphweft/stored_rows.h"

namespace gw {

#ifndef GW_PLAIN_ROWS  // else no term is a sum over edges
// Copies sums to where they are kept: past the cache where they would not stay in it until somebody reads them.
inline void keep_rows(const gw_term_f32& term, int64_t row, int64_t count, const float* from, int64_t ld) {
  const int64_t bytes = term.k * int64_t(sizeof(float));
  const bool streams = streams_rows(term.edges->num_rows * bytes, bytes);
  const bool follow = ld == term.k && term.ld_kept == term.k;  // rows are one stretch, with few lines half written
  const int64_t stretch = follow ? count * bytes : bytes;
  for (int64_t i = 0; i < (follow ? 1 : count); ++i) {
    float* const to = term.kept + (row + i) * term.ld_kept;
    if (streams)
      stream_row(reinterpret_cast<const char*>(from + i * ld), stretch, reinterpret_cast<char*>(to));
    else
      std::memcpy(to, from + i * ld, size_t(stretch));
  }
}

#endif

// Whether a product is written past the cache, which the rows that it reads would push it out of anyway.
inline bool streams_output(const gemm_shape& shape) {
  const bool whole_lines = reinterpret_cast<uintptr_t>(shape.y) % line_bytes == 0 && shape.ldy % 16 == 0;
  return whole_lines && shape.n * shape.m * int64_t(sizeof(float)) >= streamed_from;
}

// Whether a term's rows lie as they are wanted.
inline bool reads_in_place(const gw_term_f32& term) { return !term.edges && !term.rows && !term.half; }

inline stored_rows rows_of(const gw_term_f32& term) { return {term.x, term.ldx, term.half != 0, term.rows}; }

// Rows [row, row + count) of a term, with looks at what is to be fetched meanwhile. `fetches`: nobody has brought the
// rows of its table near.
inline void put_term(const gw_term_f32& term, int64_t row, int64_t count, [[maybe_unused]] bool fetches,
                     row_queue* ahead, float* out) {
  if (!term.edges) {
    const stored_rows table = rows_of(term);
    for (int64_t i = row; i < row + count; ++i, out += term.k) {
      if (ahead) ahead->look();
      table.read(i, 0, term.k, out);
    }
    return;
  }
#ifndef GW_PLAIN_ROWS
  gw_epilogue_f32 scaled{};
  scaled.row_scale = term.row_scale;
  sum_rows({*term.edges, term.x, term.ldx, term.k, scaled, nullptr, fetches, term.half != 0, ahead}, row, row + count,
           out, term.k);
  if (term.kept) keep_rows(term, row, count, out, term.k);
#endif
}

#ifndef GW_PLAIN_ROWS
// How many rows of its table a term reads for rows [row, row + count).
inline int64_t table_rows(const gw_term_f32& term, int64_t row, int64_t count) {
  return term.edges ? term.edges->indptr[row + count] - term.edges->indptr[row] : count;
}

// What a thread has fetched: the rows of tables for the block of rows that begins at `row`.
struct fetched_rows {
  int64_t row = -1, bytes = 0;
  std::vector<row_queue::entry> entries;
};

// The rows of tables that put_term will read for rows [row, row + count); none where they are more than the second
// cache holds beside the product.
inline void list_rows(const gw_term_f32* terms, int64_t num_terms, int64_t row, int64_t count, fetched_rows& found) {
  constexpr int64_t most_bytes = 3 << 17;
  found.row = row;
  for (int64_t t = 0; t < num_terms; ++t) {
    const gw_term_f32& term = terms[t];
    if (reads_in_place(term)) continue;
    const stored_rows table{term.x, term.ldx, term.half != 0};
    const int64_t wide = table.bytes(term.k), rows = table_rows(term, row, count),
                  before = int64_t(found.entries.size());
    found.bytes += rows * wide;
    if (found.bytes > most_bytes) {
      found.entries.clear();
      return;
    }
    found.entries.resize(size_t(before + rows));
    row_queue::entry* to = found.entries.data() + before;
    const auto list = [&](const auto* ids) {
      for (int64_t i = 0; i < rows; ++i, ++to) {  // word by word: a pair that is read at once would wait for both
        to->at = table.at(int64_t(ids[i]));
        to->bytes = wide;
      }
    };
    if (!term.edges && !term.rows)
      for (int64_t i = row; i < row + rows; ++i) *to++ = {table.at(i), wide};
    else if (!term.edges)
      list(term.rows + row);
    else if (term.edges->wide)
      list(static_cast<const int64_t*>(term.edges->indices) + term.edges->indptr[row]);
    else
      list(static_cast<const int32_t*>(term.edges->indices) + term.edges->indptr[row]);
  }
}

// How often a queue is looked at while sums over edges are taken for rows [row, row + count) and rows of tables read.
inline int64_t count_row_looks(const gw_term_f32* terms, int64_t num_terms, int64_t row, int64_t count) {
  int64_t looks = 0;
  for (int64_t t = 0; t < num_terms; ++t)
    if (!reads_in_place(terms[t]))
      looks += table_rows(terms[t], row, count) * (terms[t].edges ? edge_sum_tiles(terms[t].k) : 1);
  return looks;
}

// The same while these rows are put together and multiplied.
inline int64_t count_looks(const gw_term_f32* terms, int64_t num_terms, const std::vector<panel>& panels, int64_t row,
                           int64_t count) {
  int64_t tiles = 0, looks = count_row_looks(terms, num_terms, row, count);
  for (const panel& columns : panels) tiles += std::max<int64_t>(1, count / gemm_tile_rows(columns.vectors));
  for (int64_t t = 0; t < num_terms; ++t)
    if (!reads_in_place(terms[t])) looks += tiles * (terms[t].k / row_queue::stride);
  return std::max<int64_t>(1, looks);
}
#endif

inline void gemm_terms(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                       const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  int64_t k = 0;
  for (int64_t t = 0; t < num_terms; ++t) k += terms[t].k;
  const gemm_shape shape{n, k, m, nullptr, k, y, ldy, epilogue};
  const std::vector<panel> panels = cut_panels(m);
  const int64_t width = padded_width(panels);
  const float_buffer packed = make_buffer(checked_mul(k, width));
  for (int64_t t = 0, first = 0; t < num_terms; first += terms[t++].k)
    gemm_pack_part(panels, k, first, terms[t].k, terms[t].w, terms[t].ldw, terms[t].w_transposed != 0, packed.get());
  const gemm_cut cut(n, k);
  int64_t widest = 0;  // columns of a term that are put together
  for (int64_t t = 0; t < num_terms; ++t)
    if (!reads_in_place(terms[t])) widest = std::max(widest, terms[t].k);
  const bool streams = streams_output(shape);
  float* col_sum = epilogue ? epilogue->col_sum : nullptr;
  column_sums sums(col_sum != nullptr, cut.chunks, m);
#ifndef GW_PLAIN_ROWS
  std::vector<fetched_rows> fetched_by(static_cast<size_t>(num_threads()));
#endif
  parallel_chunks(cut.chunks, [&](int64_t chunk) {
    const float_buffer partial = num_terms == 1 && cut.blocks == 1 ? float_buffer() : make_buffer(cut.rows * width);
    const float_buffer made = make_buffer(checked_mul(cut.rows, widest));
    const int64_t end = std::min(n, (chunk + 1) * cut.grain);
    for (int64_t row = chunk * cut.grain; row < end; row += cut.rows) {
      const int64_t count = std::min(cut.rows, end - row);
      bool fetches = true;
      row_queue* queued = nullptr;
#ifndef GW_PLAIN_ROWS
      fetched_rows& fetched = fetched_by[size_t(thread_id())];
      fetches = fetched.row != row || fetched.entries.empty();
      fetched.entries.clear(), fetched.bytes = 0;
      // beyond the chunk too: most often the same thread goes on there
      const int64_t next = row + count;
      if (widest > 0 && next < n) list_rows(terms, num_terms, next, std::min(cut.rows, n - next), fetched);
      const row_queue::entry* const coming = fetched.entries.data();
      row_queue ahead(coming, coming + fetched.entries.size(), fetched.bytes,
                      count_looks(terms, num_terms, panels, row, count));
      if (!fetched.entries.empty()) queued = &ahead;
#endif
      for (int64_t t = 0, first = 0; t < num_terms; first += terms[t++].k) {
        const gw_term_f32& term = terms[t];
        const bool in_place = reads_in_place(term);
        if (!in_place) put_term(term, row, count, fetches, queued, made.get());
        const float* const x = in_place ? static_cast<const float*>(term.x) + row * term.ldx : made.get();
        gemm_block_rows(shape, {first, term.k, t == 0, t + 1 == num_terms}, gemm_cut(n, term.k), panels, packed.get(),
                        x, in_place ? term.ldx : term.k, row, count, partial.get(), sums.row(chunk),
                        in_place ? nullptr : queued, streams);
      }
      if (queued) queued->rest();
    }
    finish_streams();
  });
  if (col_sum) sums.finish(col_sum);
}

}  // namespace gw
