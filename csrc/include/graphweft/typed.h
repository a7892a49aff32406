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
#include "graphweft/gemm.h"
#include "graphweft/gemm_tn.h"
#include "graphweft/heads.h"
#include "graphweft/parallel.h"
#include "graphweft/rows.h"

extern "C" {

// Rows type after type: chunk c has rows [chunk_begin[c], chunk_begin[c + 1]) of type chunk_type[c]; unit u, whose
// share of a sum over rows is kept apart, has chunks [unit_chunk[u], unit_chunk[u + 1]) of one type.
struct gw_typed_rows {
  int64_t num_types, num_chunks, num_units;
  const int64_t* chunk_begin;
  const int64_t* chunk_type;
  const int64_t* unit_chunk;
  const int64_t* type_unit;  // [num_types + 1]: the units of each type
};

// What a row of the result adds up: pairs of its own (edge -1), and edges to pairs at the other end.
struct gw_typed_sums {
  int64_t num_rows, num_blocks;
  const int64_t* indptr;  // [num_rows + 1]
  const void* pair;
  const void* edge;
  const int64_t* block_row;  // [num_blocks + 1], about equal work
};

struct gw_typed_pairs {
  gw_typed_rows rows;      // pairs, relation after relation
  const int64_t* entries;  // [pairs + 1]: the edges of each pair
  const void* node;        // [pairs]: its end
  const void* other;       // [edges] in the order of pairs: the other end
  const void* edge;        // [edges]: the id
  const uint8_t* on_dst;   // [types]: pairs are destinations
  gw_typed_sums sums[2];   // of destinations, of sources
  int32_t wide;            // 1: node, other, edge and pair are int64, else int32
};

// W[type][heads][in][out], or stored [out][in].
struct gw_typed_weight {
  const float* values;
  int64_t heads, in, out;
  int32_t transposed;
};
}

namespace gw {

// Packed matrices of every type and head.
class packed_weights {
 public:
  packed_weights(const gw_typed_weight& w, float* room) : w_(w), panels_(cut_panels(w.out)), room_(room) {}

  [[nodiscard]] int64_t matrix() const { return checked_mul(w_.in, padded_width(panels_)); }
  [[nodiscard]] int64_t per_type() const { return checked_mul(w_.heads, matrix()); }
  [[nodiscard]] int64_t in_width() const { return w_.heads * w_.in; }
  [[nodiscard]] int64_t out_width() const { return w_.heads * w_.out; }

  void pack(int64_t type) const { pack_at(type, room_ + type * per_type()); }
  void pack_at(int64_t type, float* to) const {
    const float* from = w_.values + type * w_.heads * w_.in * w_.out;
    const int64_t ld = w_.transposed ? w_.in : w_.out;
    for (int64_t h = 0; h < w_.heads; ++h)
      gemm_pack(panels_, w_.in, from + h * w_.in * w_.out, ld, w_.transposed != 0, to + h * matrix());
  }

  // y[i] = x[i] W[type], head by head, for n rows.
  void multiply(int64_t type, int64_t n, const float* x, float* y, const gw_epilogue_f32* stages = nullptr) const {
    multiply_at(room_ + type * per_type(), n, x, y, stages);
  }
  void multiply_at(const float* matrices, int64_t n, const float* x, float* y,
                   const gw_epilogue_f32* stages = nullptr) const {
    for (int64_t h = 0; h < w_.heads; ++h) {
      const gemm_shape shape{n, w_.in, w_.out, x + h * w_.in, in_width(), y + h * w_.out, out_width(), stages};
      const float* packed = matrices + h * matrix();
      for (const panel& columns : panels_)
        gemm_run({&shape, packed + w_.in * columns.offset, columns, shape.x, shape.ldx, 0, n, 0, w_.in, nullptr, true,
                  true, nullptr});
    }
  }

 private:
  gw_typed_weight w_;
  std::vector<panel> panels_;
  float* room_;
};

// Rows times the matrix of their type, plus `bias[type]` where there is one (of one head).
inline void typed_matmul(const gw_typed_rows& rows, const gw_typed_weight& weight, const float* bias, const float* x,
                         float* room, float* y) {
  const packed_weights w(weight, room);
  parallel_chunks(rows.num_types, [&](int64_t type) { w.pack(type); });
  parallel_chunks(rows.num_chunks, [&](int64_t c) {
    const int64_t begin = rows.chunk_begin[c], type = rows.chunk_type[c];
    gw_epilogue_f32 stages{};
    stages.bias = bias ? bias + type * weight.out : nullptr;
    w.multiply(type, rows.chunk_begin[c + 1] - begin, x + begin * w.in_width(), y + begin * w.out_width(),
               bias ? &stages : nullptr);
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

// Sums of products A^T B over the rows of each type, head by head.
class typed_contraction {
 public:
  typed_contraction(const gw_typed_rows& rows, int64_t heads, int64_t in, int64_t out, float* room)
      : rows_(rows), heads_(heads), in_(in), out_(out), panels_(cut_panels(out)), room_(room) {}

  [[nodiscard]] int64_t per_unit() const { return checked_mul(checked_mul(heads_, in_), padded_width(panels_)); }

  // fetch(chunk, a, b) gives the rows of a chunk: pointers to rows of heads * in and heads * out numbers, those of b
  // with a vector's room behind the last.
  template <class Fetch>
  void run(float* result, Fetch&& fetch) const {
    const int64_t width = padded_width(panels_);
    parallel_chunks(rows_.num_units, [&](int64_t unit) {
      float* sums = room_ + unit * per_unit();
      const int64_t first = rows_.unit_chunk[unit];
      for (int64_t c = first; c < rows_.unit_chunk[unit + 1]; ++c) {
        const int64_t n = rows_.chunk_begin[c + 1] - rows_.chunk_begin[c];
        fetch(c, [&](const float* a, const float* b) {
          for (int64_t h = 0; h < heads_; ++h)
            for (const panel& columns : panels_)
              gemm_tn_run(columns, {a + h * in_, heads_ * in_, b + h * out_ + columns.first, heads_ * out_, n, in_,
                                    sums + h * in_ * width + columns.offset, width, c == first, false});
        });
      }
    });
    parallel_chunks(rows_.num_types, [&](int64_t type) { finish(type, result + type * heads_ * in_ * out_); });
  }

 private:
  // The units of a type, added in order.
  void finish(int64_t type, float* out) const {
    const int64_t width = padded_width(panels_), begin = rows_.type_unit[type], end = rows_.type_unit[type + 1];
    if (begin == end) std::fill_n(out, heads_ * in_ * out_, 0.0f);
    for (int64_t unit = begin; unit < end; ++unit)
      for (int64_t row = 0; row < heads_ * in_; ++row)
        for (const panel& columns : panels_) {
          const float* from = room_ + unit * per_unit() + row * width + columns.offset;
          float* to = out + row * out_ + columns.first;
          if (unit == begin)
            std::copy_n(from, columns.width, to);
          else
            for (int j = 0; j < columns.width; ++j) to[j] += from[j];
        }
  }

  gw_typed_rows rows_;
  int64_t heads_, in_, out_;
  std::vector<panel> panels_;
  float* room_;
};

// Copies `n` rows of `width` so that vectors may be read beyond the last.
inline float_buffer rows_with_room(const float* x, int64_t n, int64_t width) {
  float_buffer out = make_buffer(n * width + vf::lanes);
  std::copy_n(x, n * width, out.get());
  std::fill_n(out.get() + n * width, vf::lanes, 0.0f);
  return out;
}

// dW[type] = sum over its rows of x[i]^T y[i].
inline void typed_outer_rows(const gw_typed_rows& rows, int64_t heads, int64_t in, int64_t out, const float* x,
                             const float* y, float* room, float* result) {
  const int64_t last = rows.num_chunks - 1;
  typed_contraction(rows, heads, in, out, room).run(result, [&](int64_t c, auto&& add) {
    const int64_t begin = rows.chunk_begin[c], n = rows.chunk_begin[c + 1] - begin;
    const float* b = y + begin * heads * out;
    if (c < last) return add(x + begin * heads * in, b);
    add(x + begin * heads * in, rows_with_room(b, n, heads * out).get());
  });
}

// Rows of one end of the edges, and a number per edge and head, or per edge where heads is 1; null: ones.
struct typed_rows {
  const float* x;
  int64_t width;
  const float* weight;
  int64_t heads;
};

// How many rows ahead of its use a gathered row is asked for.
inline constexpr int64_t typed_ahead = 8;

// A typed view of gw_typed_pairs.
template <class I>
class pair_view {
 public:
  explicit pair_view(const gw_typed_pairs& p)
      : all(p),
        node(static_cast<const I*>(p.node)),
        other(static_cast<const I*>(p.other)),
        edge(static_cast<const I*>(p.edge)) {}

  const gw_typed_pairs& all;
  const I *node, *other, *edge;

  // out[p - begin] = the row of pair p's own end.
  void own(int64_t begin, int64_t end, const typed_rows& rows, float* out) const {
    const int64_t bytes = rows.width * int64_t(sizeof(float));
    for (int64_t p = begin; p < end; ++p, out += rows.width) {
      if (p + typed_ahead < end) fetch<3>(rows.x + int64_t(node[p + typed_ahead]) * rows.width, bytes);
      std::copy_n(rows.x + int64_t(node[p]) * rows.width, rows.width, out);
    }
  }

  // out[p - begin] = the sum over pair p's edges of weight[e] times the row of the other end.
  void summed(int64_t begin, int64_t end, const typed_rows& rows, float* out) const {
    for_each_head_tile(rows.heads, rows.width / rows.heads, [&](auto tile) {
      using T = decltype(tile);
      const int64_t last = all.entries[end];
      for (int64_t p = begin; p < end; ++p) {
        typename T::vec t[T::vectors], v[T::vectors];
#pragma GCC unroll 8
        for (auto& part : t) part = typename T::vec{};
        for (int64_t e = all.entries[p]; e < all.entries[p + 1]; ++e) {
          if (e + typed_ahead < last)
            fetch<3>(rows.x + int64_t(other[e + typed_ahead]) * rows.width + tile.first(), tile.bytes());
          tile.load(rows.x + int64_t(other[e]) * rows.width + tile.first(), v);
          if (rows.weight) {
            const typename T::weights w(rows.weight + int64_t(edge[e]) * rows.heads + tile.h0);
#pragma GCC unroll 8
            for (int k = 0; k < T::vectors; ++k) t[k] += w[k] * v[k];
          } else {
#pragma GCC unroll 8
            for (int k = 0; k < T::vectors; ++k) t[k] += v[k];
          }
        }
        tile.store(out + (p - begin) * rows.width + tile.first(), t);
      }
    });
  }
};

// t[p] = the row of pair p times the matrix of its relation; from sources to destinations, or back where `turned`.
template <class I>
void pair_products(const gw_typed_pairs& pairs, bool turned, const typed_rows& rows, const gw_typed_weight& weight,
                   float* room, float* t) {
  const pair_view<I> view(pairs);
  const packed_weights w(weight, room);
  parallel_chunks(pairs.rows.num_types, [&](int64_t type) { w.pack(type); });
  parallel_chunks(pairs.rows.num_chunks, [&](int64_t c) {
    const int64_t begin = pairs.rows.chunk_begin[c], end = pairs.rows.chunk_begin[c + 1];
    const int64_t type = pairs.rows.chunk_type[c];
    const float_buffer x = make_buffer((end - begin) * rows.width);
    if ((pairs.on_dst[type] != 0) != turned)
      view.summed(begin, end, rows, x.get());
    else
      view.own(begin, end, rows, x.get());
    w.multiply(type, end - begin, x.get(), t + begin * w.out_width());
  });
}

// y[i] = the sum of its own pairs' rows, and over its edges to pairs at the other end of weight[e] times theirs.
template <class I>
void sum_pairs(const gw_typed_sums& sums, const typed_rows& t, float* y) {
  const auto* pair = static_cast<const I*>(sums.pair);
  const auto* edge = static_cast<const I*>(sums.edge);
  parallel_chunks(sums.num_blocks, [&](int64_t block) {
    const int64_t begin = sums.block_row[block], end = sums.block_row[block + 1], last = sums.indptr[end];
    for_each_head_tile(t.heads, t.width / t.heads, [&](auto tile) {
      using T = decltype(tile);
      for (int64_t i = begin; i < end; ++i) {
        typename T::vec total[T::vectors], v[T::vectors];
#pragma GCC unroll 8
        for (auto& part : total) part = typename T::vec{};
        for (int64_t at = sums.indptr[i]; at < sums.indptr[i + 1]; ++at) {
          if (at + typed_ahead < last)
            fetch<3>(t.x + int64_t(pair[at + typed_ahead]) * t.width + tile.first(), tile.bytes());
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

// dW[relation] = sum over its edges of weight[e] src[src e]^T dst[dst e].
template <class I>
void typed_outer_edges(const gw_typed_pairs& pairs, int64_t heads, const typed_rows& src, const typed_rows& dst,
                       float* room, float* result) {
  const pair_view<I> view(pairs);
  const typed_contraction sums(pairs.rows, heads, src.width / heads, dst.width / heads, room);
  sums.run(result, [&](int64_t c, auto&& add) {
    const int64_t begin = pairs.rows.chunk_begin[c], end = pairs.rows.chunk_begin[c + 1];
    const float_buffer a = make_buffer((end - begin) * src.width);
    const float_buffer b = make_buffer((end - begin) * dst.width + vf::lanes);
    std::fill_n(b.get() + (end - begin) * dst.width, vf::lanes, 0.0f);
    if (pairs.on_dst[pairs.rows.chunk_type[c]]) {
      view.summed(begin, end, src, a.get());
      view.own(begin, end, dst, b.get());
    } else {
      view.own(begin, end, src, a.get());
      view.summed(begin, end, dst, b.get());
    }
    add(a.get(), b.get());
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
    (on_dst ? here : there).multiply_at(room + type * place, end - begin, x.get(), q.get());
    const int64_t last = pairs.entries[end];
    for_each_head_tile(far.heads, far.width / far.heads, [&](auto tile) {
      using T = decltype(tile);
      for (int64_t p = begin; p < end; ++p) {
        typename T::vec mine[T::vectors];
        tile.load(q.get() + (p - begin) * far.width + tile.first(), mine);
        for (int64_t e = pairs.entries[p]; e < pairs.entries[p + 1]; ++e) {
          typename T::vec t[T::vectors];
          if (e + typed_ahead < last)
            fetch<3>(far.x + int64_t(view.other[e + typed_ahead]) * far.width + tile.first(), tile.bytes());
          tile.load(far.x + int64_t(view.other[e]) * far.width + tile.first(), t);
#pragma GCC unroll 8
          for (int k = 0; k < T::vectors; ++k) t[k] *= mine[k];
          T::sum(t, out + int64_t(view.edge[e]) * far.heads + tile.h0, tile.c0 > 0);
        }
      }
    });
  });
}

}  // namespace gw
