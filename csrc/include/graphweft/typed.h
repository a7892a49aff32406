// Products with a matrix per type. Rows of one type lie together (nodes type after type, or the pairs of a typed graph
// relation after relation) and are cut into chunks; the matrices are packed once per call.
//
// The edges of a typed graph are grouped into pairs of a relation and an end: the destination or the source, whichever
// makes fewer pairs in that relation. sum_e weight[e] x[src e] W[relation e] then takes one product per pair, not per
// edge: where pairs are destinations their rows are summed first and multiplied after, where they are sources they are
// multiplied first. Nothing has the size of the edges. Order follows from the graph alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "graphweft/abi.h"
#include "graphweft/edge_blocks.h"
#include "graphweft/heads.h"
#include "graphweft/parallel.h"
#include "graphweft/rows.h"
#include "graphweft/typed_narrow.h"
#include "graphweft/typed_pairs.h"
#include "graphweft/typed_weights.h"

namespace gw {

// Rows times the matrix of their type, plus `bias[type]` where there is one (of one head).
inline void typed_matmul(const gw_typed_rows& rows, const gw_typed_weight& weight, const float* bias, const float* x,
                         float* room, float* y) {
  const packed_weights w(weight, room);
  parallel_chunks(rows.num_types, [&](int64_t type) { w.pack(type); });
  parallel_chunks(rows.num_chunks, [&](int64_t c) {
    const int64_t begin = rows.chunk_begin[c], type = rows.chunk_type[c];
    w.multiply(w.at(type), rows.chunk_begin[c + 1] - begin, x + begin * w.in_width(), y + begin * w.out_width(),
               bias ? bias + type * weight.out : nullptr);
  });
}

// out[type] = the sum of its rows. `room`: a row per unit.
inline void typed_row_sums(const gw_typed_rows& rows, int64_t width, const float* x, float* room, float* out) {
  parallel_chunks(rows.num_units, [&](int64_t unit) {
    float* sums = room + unit * width;
    std::fill_n(sums, width, 0.0f);
    const int64_t begin = rows.chunk_begin[rows.unit_chunk[unit]], end = rows.chunk_begin[rows.unit_chunk[unit + 1]];
    add_rows(x + begin * width, width, end - begin, width, sums);
  });
  for (int64_t type = 0; type < rows.num_types; ++type) {
    std::fill_n(out + type * width, width, 0.0f);
    for (int64_t unit = rows.type_unit[type]; unit < rows.type_unit[type + 1]; ++unit)
      for (int64_t j = 0; j < width; ++j) out[type * width + j] += room[unit * width + j];
  }
}

// Room for `n` rows of `width`, and zeros so that vectors may be read beyond the last.
inline float_buffer rows_and_room(int64_t n, int64_t width) {
  float_buffer out = make_buffer(n * width + vf::lanes);
  std::fill_n(out.get() + n * width, vf::lanes, 0.0f);
  return out;
}
inline float_buffer rows_with_room(const float* x, int64_t n, int64_t width) {
  float_buffer out = rows_and_room(n, width);
  std::copy_n(x, n * width, out.get());
  return out;
}

// dW[type] = sum over its rows of x[i]^T y[i].
inline void typed_outer_rows(const gw_typed_rows& rows, int64_t heads, int64_t in, int64_t out, const float* x,
                             const float* y, float* room, float* result) {
  const int64_t last = rows.num_chunks - 1;
  typed_contraction(rows, heads, in, out, room).run(result, [&](int64_t c, auto&& add) {
    const int64_t begin = rows.chunk_begin[c], n = rows.chunk_begin[c + 1] - begin;
    const float *a = x + begin * heads * in, *b = y + begin * heads * out;
    const auto nothing = [](int64_t, int64_t) {};
    if (c < last) return add(a, b, nothing);
    add(rows_with_room(a, n, heads * in).get(), rows_with_room(b, n, heads * out).get(), nothing);
  });
}

// t[p] = the row of pair p times the matrix of its relation; from sources to destinations, or back where `turned`.
template <class I>
void pair_products(const gw_typed_pairs& pairs, bool turned, const typed_rows& rows, const packed_weights& w,
                   float* t) {
  const pair_view<I> view(pairs);
  const auto own_end = [&](int64_t type) { return (pairs.on_dst[type] != 0) == turned; };
  parallel_chunks(pairs.rows.num_chunks, [&](int64_t c) {
    const int64_t begin = pairs.rows.chunk_begin[c], end = pairs.rows.chunk_begin[c + 1];
    const int64_t type = pairs.rows.chunk_type[c];
    const float_buffer x = make_buffer((end - begin) * rows.width);
    view.rows(begin, end, own_end(type), rows, x.get());
    coming_rows next;
    if (c + 1 < pairs.rows.num_chunks) view.coming(c + 1, own_end(pairs.rows.chunk_type[c + 1]), rows, next);
    row_queue ahead = next.queue(w.steps(end - begin));
    w.multiply(w.at(type), end - begin, x.get(), t + begin * w.out_width(), nullptr, &ahead);
  });
}

// y[i] = the sum of its own pairs' rows, and over its edges to pairs at the other end of weight[e] times theirs.
template <class I>
void sum_pairs(const gw_typed_sums& sums, const typed_rows& t, float* y) {
  const auto* pair = static_cast<const I*>(sums.pair);
  const auto* edge = static_cast<const I*>(sums.edge);
  parallel_chunks(sums.num_blocks, [&](int64_t block) {
    const int64_t begin = sums.block_row[block], end = sums.block_row[block + 1], last = sums.indptr[end];
    for_each_head_tile<few_shapes || sizeof(I) == 8>(t.heads, t.width / t.heads, [&](auto tile) {
      using T = decltype(tile);
      for (int64_t i = begin; i < end; ++i) {
        typename T::vec total[T::vectors], v[T::vectors];
#pragma GCC unroll 8
        for (auto& part : total) part = typename T::vec{};
        for (int64_t at = sums.indptr[i]; at < sums.indptr[i + 1]; ++at) {
          if (at + typed_ahead < last)
            fetch<2>(t.x + int64_t(pair[at + typed_ahead]) * t.width + tile.first(), tile.bytes());
          tile.load(t.x + int64_t(pair[at]) * t.width + tile.first(), v);
          if (t.weight && edge[at] >= 0) {
            const typename T::weights w(t.weight + int64_t(edge[at]) * t.heads + tile.h0);
#pragma GCC unroll 8
            for (int k = 0; k < T::vectors; ++k) total[k] += w[k] * v[k];
          } else {
#pragma GCC unroll 8
            for (int k = 0; k < T::vectors; ++k) total[k] += v[k];
          }
        }
        tile.store(y + i * t.width + tile.first(), total);
      }
    });
  });
}

// y = the sum over edges of weight[e] x[one end] W[relation e] at the other; `turned`: from destinations to sources.
// `t`: room for a row of y per pair.
template <class I>
void typed_spmm(const gw_typed_pairs& pairs, bool turned, const typed_rows& x, const gw_typed_weight& weight,
                float* room, float* t, float* y) {
  const packed_weights w(weight, room);
  parallel_chunks(pairs.rows.num_types, [&](int64_t type) { w.pack(type); });
  const gw_typed_sums& sums = pairs.sums[turned ? 1 : 0];
  if (narrow_rows::fits(weight)) {
    narrow_rows::fill<I>(pairs, turned, x, t);
    return narrow_rows::sum_products<I>(sums, x, w, t, y);
  }
  pair_products<I>(pairs, turned, x, w, t);
  sum_pairs<I>(sums, {t, w.out_width(), x.weight, x.heads}, y);
}

// dW[relation] = sum over its edges of weight[e] src[src e]^T dst[dst e].
template <class I>
void typed_outer_edges(const gw_typed_pairs& pairs, int64_t heads, const typed_rows& src, const typed_rows& dst,
                       float* room, float* result) {
  const pair_view<I> view(pairs);
  const typed_contraction sums(pairs.rows, heads, src.width / heads, dst.width / heads, room);
  sums.run(result, [&](int64_t c, auto&& add) {
    const int64_t begin = pairs.rows.chunk_begin[c], end = pairs.rows.chunk_begin[c + 1];
    const float_buffer a = rows_and_room(end - begin, src.width), b = rows_and_room(end - begin, dst.width);
    const auto by_dst = [&](int64_t chunk) { return pairs.on_dst[pairs.rows.chunk_type[chunk]] != 0; };
    view.rows(begin, end, !by_dst(c), src, a.get());
    view.rows(begin, end, by_dst(c), dst, b.get());
    coming_rows next;
    if (c + 1 < pairs.rows.num_chunks) {
      view.coming(c + 1, !by_dst(c + 1), src, next);
      view.coming(c + 1, by_dst(c + 1), dst, next);
    }
    add(a.get(), b.get(), [&](int64_t part, int64_t parts) { next.fetch(part, parts); });
  });
}

// out[e] = <src[src e] W[relation e], dst[dst e]>, per head where src.heads is heads, else over all of them.
template <class I>
void typed_dots(const gw_typed_pairs& pairs, const typed_rows& src, const typed_rows& dst,
                const gw_typed_weight& weight, float* room, float* out) {
  const pair_view<I> view(pairs);
  gw_typed_weight back = weight;
  std::swap(back.in, back.out);
  back.transposed = !weight.transposed;
  const packed_weights there(weight, room), here(back, room);
  // each relation is packed for the direction that it is multiplied in, in a place that fits either
  const int64_t place = std::max(there.per_type(), here.per_type());
  parallel_chunks(pairs.rows.num_types,
                  [&](int64_t type) { (pairs.on_dst[type] ? here : there).pack_at(type, room + type * place); });
  parallel_chunks(pairs.rows.num_chunks, [&](int64_t c) {
    const int64_t begin = pairs.rows.chunk_begin[c], end = pairs.rows.chunk_begin[c + 1];
    const int64_t type = pairs.rows.chunk_type[c];
    const bool on_dst = pairs.on_dst[type] != 0;
    const typed_rows& own = on_dst ? dst : src;
    const typed_rows& far = on_dst ? src : dst;
    const float_buffer x = make_buffer((end - begin) * own.width), q = make_buffer((end - begin) * far.width);
    view.own(begin, end, own, x.get());
    coming_rows next;
    if (c + 1 < pairs.rows.num_chunks) {
      const bool turns = pairs.on_dst[pairs.rows.chunk_type[c + 1]] != 0;
      view.coming(c + 1, true, turns ? dst : src, next);
      view.coming(c + 1, false, turns ? src : dst, next);
    }
    const packed_weights& w = on_dst ? here : there;
    row_queue ahead = next.queue(w.steps(end - begin));
    w.multiply(room + type * place, end - begin, x.get(), q.get(), nullptr, &ahead);
    const int64_t last = pairs.entries[end];
    for_each_head_tile<few_shapes || sizeof(I) == 8>(far.heads, far.width / far.heads, [&](auto tile) {
      using T = decltype(tile);
      for (int64_t p = begin; p < end; ++p) {
        typename T::vec mine[T::vectors];
        tile.load(q.get() + (p - begin) * far.width + tile.first(), mine);
        for (int64_t e = pairs.entries[p]; e < pairs.entries[p + 1]; ++e) {
          typename T::vec theirs[T::vectors], t[T::sums] = {};
          if (e + typed_ahead < last)
            fetch<2>(far.x + int64_t(view.other[e + typed_ahead]) * far.width + tile.first(), tile.bytes());
          tile.load(far.x + int64_t(view.other[e]) * far.width + tile.first(), theirs);
#pragma GCC unroll 8
          for (int k = 0; k < T::vectors; ++k) T::add_product(t, k, theirs[k], mine[k]);
          T::sum(t, out + int64_t(view.edge[e]) * far.heads + tile.h0, tile.c0 > 0);
        }
      }
    });
  });
}

}  // namespace gw
