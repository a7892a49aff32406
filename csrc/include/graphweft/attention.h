// Attention over in-edges, every head by itself:
//
//   out[i] = sum_{e = (j -> i)} keep[e] softmax_e(score[e]) value[j]
//
//   add   score = leaky(src[j] + dst[i])                         GAT (Velickovic et al., ICLR 2018)
//   add2  score = <vector, leaky(value[j] + dst[i])>             GATv2 (Brody et al., ICLR 2022)
//   dot   score = scale <src[j], dst[i]>                         dot product (Vaswani et al., NeurIPS 2017)
//
// Nothing of edge size is kept. A block of rows is scored, shifted by each row's maximum, exponentiated and summed
// while it lies in cache. The backward pass computes the scores again and needs of the forward pass only each row's
// maximum and one over its sum: softmax_e = exp(score_e - top_i) inverse_i, and sum_e softmax_e dsoftmax_e =
// <dout_i, out_i>. They stay two numbers: the logarithm of the sum, added to a maximum of 10,000, keeps three digits
// behind the point.
//
// For `add` the forward pass also keeps `plus`, the part of out[i] over edges where the leaky unit is in its upper
// half: as softmax gradients of a row add up to nothing, d dst[i] = (1 - slope) (<dout_i, plus_i> - <dout_i, out_i>
// upper_i), and no second pass over the edges is needed.
//
// Heads may share their values (`add` only): all sum the same C channels of a source, each with its own weights. That
// is the late transform of GAT, whose product with a weight per head follows (Joestar, section 5.4).
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "graphweft/edge_blocks.h"
#include "graphweft/epilogue.h"
#include "graphweft/explog.h"
#include "graphweft/heads.h"
#include "graphweft/rows.h"

extern "C" {

enum gw_score : int32_t { gw_score_add = 0, gw_score_add2 = 1, gw_score_dot = 2 };

// Operands; all rows are contiguous, H heads of C channels.
struct gw_attention_f32 {
  int32_t score;
  int32_t shared;  // 1: value and its gradient have C columns, which all heads read
  int64_t heads, channels;
  double slope;           // of the leaky unit, in [0, 1]
  double scale;           // dot
  double drop;            // probability to drop an edge's softmax, per head
  uint64_t seed, stream;  // of these draws; draw (edge id, head)
  const float* value;     // [num_src, H C], [num_src, C] when shared
  const float* src;       // add [num_src, H], dot [num_src, H C], add2 null
  const float* dst;       // add [num_dst, H], else [num_dst, H C]
  const float* vector;    // add2 [H C], else null
};

// Results of the backward pass; those of the sources together, those of the destinations together.
struct gw_attention_grad_f32 {
  float* value;   // [num_src, H C], [num_src, C] when shared
  float* src;     // add [num_src, H], dot [num_src, H C], else null
  float* dst;     // add [num_dst, H], else [num_dst, H C]; null: not wanted
  float* vector;  // add2 [H C], with dst
  float* slopes;  // [num_edges, H] by edge id, room for the scores' gradients between two passes; null: made twice
};
}

namespace gw {

template <int Score>
struct attention_problem {
  static constexpr bool additive = Score == gw_score_add, leaky = Score != gw_score_dot;
  gw_attention_f32 o;
  int64_t heads, channels, width;
  int64_t value_width, value_step;  // columns of a row of values, and from head to head in it
  float slope, scale, kept;
  uint32_t threshold;  // of a 16-bit draw; 0: nothing is dropped

  explicit attention_problem(const gw_attention_f32& operands)
      : o(operands),
        heads(o.heads),
        channels(o.channels),
        width(checked_mul(heads, channels)),
        value_width(o.shared ? channels : width),
        value_step(o.shared ? 0 : channels),
        slope(float(o.slope)),
        scale(float(o.scale)),
        kept(float(1.0 / (1.0 - o.drop))),
        threshold(uint32_t(std::lround(o.drop * 65536.0))) {}

  // Numbers per row that forward keeps for backward: maximum and inverse sum of each head, and for `add` also plus's
  // share of the sum, and plus.
  static constexpr int64_t row_parts = additive ? 3 : 2;
  [[nodiscard]] int64_t stats_width() const { return row_parts * heads + (additive ? width : 0); }

  // Tiles over the values: `body(tile, first, step, bytes)`, where a tile's values begin in a row, how far heads are
  // apart and how many bytes they reach.
  template <class Body>
  void for_each_value_tile(Body&& body) const {
    const bool shared = additive && o.shared;
    for_each_head_tile(
        heads, channels,
        [&](auto tile) {
          using T = decltype(tile);
          if constexpr (T::heads > T::sums) {  // packed heads are never shared
            body(tile, tile.first(), tile.step(), tile.bytes());
          } else {
            const int64_t bytes = shared ? std::min<int64_t>(channels - tile.c0, T::reach) * 4 : tile.bytes();
            body(tile, shared ? tile.c0 : tile.first(), shared ? 0 : tile.step(), bytes);
          }
        },
        !shared);
  }

  GW_INLINE vf::vec act(vf::vec z) const { return additive ? (z > 0.0f ? z : z * slope) : z; }

  // keep[e][h] of a block: 0 or 1 / (1 - drop); eight 16-bit draws of one Philox block serve eight heads of an edge.
  void draw(const id_list& ids, const edge_block& b, float* keep) const {
    const uint64_t per_edge = uint64_t(heads + 7) / 8;
    for (int64_t e = 0; e < b.count; e += 8) {
      const int lanes = int(std::min<int64_t>(8, b.count - e));
      u64x8 id{};
      for (int lane = 0; lane < lanes; ++lane) id[lane] = uint64_t(ids[b.first + e + lane]);
      for (uint64_t part = 0; part < per_edge; ++part) {
        u64x8 words[2];
        random_blocks(o.seed, o.stream, id * per_edge + part, words[0], words[1]);
        uint16_t draws[2][32];
        std::memcpy(draws, words, sizeof words);
        const int64_t h0 = int64_t(part) * 8, count = std::min<int64_t>(8, heads - h0);
        for (int lane = 0; lane < lanes; ++lane)
          for (int64_t h = 0; h < count; ++h)
            keep[(e + lane) * heads + h0 + h] = draws[h / 4][lane * 4 + h % 4] >= threshold ? kept : 0.0f;
      }
    }
  }
};

GW_INLINE vf::vec leaky_unit(vf::vec z, float slope) { return z > 0.0f ? z : z * slope; }

// Numbers per edge and head of one block, and per row and head; as long as any block needs.
class flat_arrays {
 public:
  template <int N>
  void reserve(int64_t count, float* (&out)[N]) {
    const int64_t stride = (count + 2 * vf::lanes) / 16 * 16 + 16;
    if (int64_t(store_.size()) < N * stride) store_.resize(size_t(N * stride));
    for (int i = 0; i < N; ++i) out[i] = store_.data() + i * stride;
  }

 private:
  std::vector<float> store_;
};

// out[e][h] = <a[row], b[column]>_h, or <vector, leaky(a + b)>_h when `Leaky`. Columns to come are fetched.
template <bool Leaky>
void dot_heads(const edge_block& b, int64_t heads, int64_t channels, id_list columns, const float* row_side,
               const float* column_side, const float* vector, float slope, int64_t ahead, float* out) {
  const int64_t width = heads * channels, first = b.first, last = b.last;
  for_each_head_tile(heads, channels, [&](auto tile) {
    using T = decltype(tile);
    const float* from = column_side + tile.first();
    const int64_t bytes = tile.bytes();
    typename T::vec weight[T::vectors];
    if constexpr (Leaky) tile.load(vector + tile.first(), weight);
    for (const row_part part : b) {
      typename T::vec a[T::vectors];
      tile.load(row_side + part.row * width + tile.first(), a);
      for (int64_t p = part.begin; p < part.end; ++p) {
        if (ahead > 0 && p + ahead < last) {
          fetch<2>(from + columns[p + ahead] * width, bytes);
          fetch<3>(from + columns[p + 4] * width, bytes);
        }
        const float* at = from + columns[p] * width;
        typename T::vec t[T::sums] = {};
        tile.each(at, [&](int k, const float* q) GW_INLINE_LAMBDA {
          const auto x = tile.load_vector(k, q);
          if constexpr (Leaky)
            T::add_product(t, k, weight[k], leaky_unit(a[k] + x, slope));
          else
            T::add_product(t, k, a[k], x);
        });
        T::sum(t, out + (p - first) * heads + tile.h0, tile.c0 > 0);
      }
    }
  });
}

// Forward; what the backward pass needs is kept where there is room for it. `Plus`: that is more sums of rows, for
// `add`.
template <int Score, bool Plus>
class attention_forward {
 public:
  using problem = attention_problem<Score>;
  static constexpr bool with_plus = Plus;
  static_assert(!Plus || problem::additive, "sums over the upper half of the leaky unit belong to additive scores");

  attention_forward(const problem& p, const gw_adjacency& adj, const balanced_pieces& shares, float* out, float* stats)
      : p_(p),
        columns_(adj.indices, adj.wide != 0),
        ids_(adj.edge_ids, adj.wide != 0),
        ahead_(prefetch_distance(adj.num_cols, std::min<int64_t>(512, p.width * 4))),
        out_(out),
        stats_(stats),
        slot_stride_(2 * p.width + 3 * p.heads),
        slots_(size_t(checked_mul(shares.num_slots(), slot_stride_))) {}

  class scratch {
   public:
    scratch(const attention_forward&, int64_t) {}
    flat_arrays edges, rows;
  };

  void block(scratch& s, const edge_block& b) const {
    const int64_t heads = p_.heads;
    float* edge[4];
    float* row[3];
    s.edges.reserve(b.count * heads, edge);
    s.rows.reserve(b.rows() * heads, row);
    float *z = edge[0], *w = edge[1], *upper = edge[2], *keep = edge[3];
    score(b, z);
    shift(b, z, w, row[0]);
    for_flat(b.count * heads, [&](int64_t i) GW_INLINE_LAMBDA { vf::store(w + i, exp_lanes(vf::load(w + i))); });
    if constexpr (with_plus)
      for_flat(b.count * heads, [&](int64_t i) GW_INLINE_LAMBDA {
        vf::store(upper + i, vf::load(z + i) > 0.0f ? vf::load(w + i) : vf::vec{});
      });
    add_up(b, w, row[1]);
    if constexpr (with_plus) add_up(b, upper, row[2]);
    if (p_.threshold > 0) {
      p_.draw(ids_, b, keep);
      for_flat(b.count * heads, [&](int64_t i) GW_INLINE_LAMBDA {
        vf::store(w + i, vf::load(w + i) * vf::load(keep + i));
        if constexpr (with_plus) vf::store(upper + i, vf::load(upper + i) * vf::load(keep + i));
      });
    }
    finish_sums(b, row);
    gather(b, w, upper, row[1]);
  }

  // Parts of a row, each relative to its own maximum.
  void merge(const cut_row& cut) const {
    const int64_t heads = p_.heads, channels = p_.channels, width = p_.width;
    for (int64_t h = 0; h < heads; ++h) {
      float top = -std::numeric_limits<float>::infinity();
      for (int64_t k = cut.first_slot; k < cut.last_slot; ++k) top = std::max(top, slot(k)[2 * width + h]);
      float total = 0, share = 0;
      std::vector<float> sum(size_t(2 * channels), 0.0f);
      for (int64_t k = cut.first_slot; k < cut.last_slot; ++k) {
        const float* at = slot(k);
        const float factor = std::exp(at[2 * width + h] - top);
        total += at[2 * width + heads + h] * factor;
        share += at[2 * width + 2 * heads + h] * factor;
        for (int64_t c = 0; c < channels; ++c) {
          sum[size_t(c)] += at[h * channels + c] * factor;
          if constexpr (with_plus) sum[size_t(channels + c)] += at[width + h * channels + c] * factor;
        }
      }
      float* out = out_ + cut.row * width + h * channels;
      for (int64_t c = 0; c < channels; ++c) out[c] = sum[size_t(c)] / total;
      if (stats_) {
        float* stats = stats_ + cut.row * p_.stats_width();
        stats[h] = top;
        stats[heads + h] = 1.0f / total;
        if constexpr (with_plus) {
          stats[2 * heads + h] = share / total;
          for (int64_t c = 0; c < channels; ++c)
            stats[problem::row_parts * heads + h * channels + c] = sum[size_t(channels + c)] / total;
        }
      }
    }
  }

 private:
  [[nodiscard]] float* slot(int64_t k) const { return const_cast<float*>(slots_.data()) + k * slot_stride_; }

  void score(const edge_block& b, float* z) const {
    const int64_t heads = p_.heads;
    if constexpr (Score == gw_score_add) {
      const int64_t first = b.first, last = b.last, ahead = ahead_;
      const id_list columns = columns_;
      const float *src = p_.o.src, *dst = p_.o.dst;
      for (const row_part part : b)
        for_heads(heads, [&](int64_t h, auto n) GW_INLINE_LAMBDA {
          const vf::vec own = some(dst + part.row * heads + h, n);
          for (int64_t e = part.begin; e < part.end; ++e) {
            if (ahead > 0 && e + ahead < last) fetch<2>(src + columns[e + ahead] * heads + h, 4);
            put(z + (e - first) * heads + h, own + some(src + columns[e] * heads + h, n), n);
          }
        });
    } else if constexpr (Score == gw_score_add2) {
      dot_heads<true>(b, heads, p_.channels, columns_, p_.o.dst, p_.o.value, p_.o.vector, p_.slope, ahead_, z);
    } else {
      dot_heads<false>(b, heads, p_.channels, columns_, p_.o.dst, p_.o.src, nullptr, 0.0f, ahead_, z);
      for_flat(b.count * heads, [&](int64_t i) GW_INLINE_LAMBDA { vf::store(z + i, vf::load(z + i) * p_.scale); });
    }
  }

  // w = score - the row's maximum, which goes to `top`.
  void shift(const edge_block& b, const float* z, float* w, float* top) const {
    const int64_t heads = p_.heads, first = b.first;
    const float slope = p_.slope;
    const auto act = [slope](vf::vec v) GW_INLINE_LAMBDA { return problem::additive ? leaky_unit(v, slope) : v; };
    for (const row_part part : b) {
      for_heads(heads, [&](int64_t h, auto n) GW_INLINE_LAMBDA {
        constexpr float lowest = -std::numeric_limits<float>::infinity();
        vf::vec m = vf::splat(lowest);
        for (int64_t e = part.begin; e < part.end; ++e) {
          const vf::vec t = act(some(z + (e - first) * heads + h, n));
          m = t > m ? t : m;
        }
        m = m > lowest ? m : vf::vec{};
        put(top + h, m, n);
        for (int64_t e = part.begin; e < part.end; ++e)
          put(w + (e - first) * heads + h, act(some(z + (e - first) * heads + h, n)) - m, n);
      });
      top += heads;
    }
  }

  void add_up(const edge_block& b, const float* w, float* sum) const {
    const int64_t heads = p_.heads, first = b.first;
    for (const row_part part : b) {
      for_heads(heads, [&](int64_t h, auto n) GW_INLINE_LAMBDA {
        vf::vec total{};
        for (int64_t e = part.begin; e < part.end; ++e) total += some(w + (e - first) * heads + h, n);
        put(sum + h, total, n);
      });
      sum += heads;
    }
  }

  // Keeps maximum, sum and share of cut rows, with 1 / sum those of whole ones; leaves 1 / sum in place of the sum.
  // A part whose scores are all minus infinity has the sum 0, and its maximum must not count in the row's.
  void finish_sums(const edge_block& b, float* (&row)[3]) const {
    const int64_t heads = p_.heads;
    for (int64_t r = 0; r < b.rows(); ++r) {
      const row_part& part = b.begin()[r];
      for (int64_t h = 0; h < heads; ++h) {
        const float top = row[0][r * heads + h];
        float& sum = row[1][r * heads + h];
        const float share = with_plus ? row[2][r * heads + h] : 0.0f;
        if (part.slot >= 0) {
          float* at = slot(part.slot) + 2 * p_.width + h;
          at[0] = sum > 0.0f ? top : -std::numeric_limits<float>::infinity();
          at[heads] = sum;
          at[2 * heads] = share;
          sum = 1.0f;
          continue;
        }
        const bool filled = part.begin < part.end;
        const float inverse = filled ? 1.0f / sum : 0.0f;
        if (stats_) {
          float* stats = stats_ + part.row * p_.stats_width();
          stats[h] = top;  // 0 in a row without edges
          stats[heads + h] = inverse;
          if constexpr (with_plus) stats[2 * heads + h] = filled ? share / sum : 0.0f;
        }
        sum = inverse;
      }
    }
  }

  void gather(const edge_block& b, const float* w, const float* upper, const float* inverse) const {
    // Locals: vector stores may alias anything, and members would be read again for every edge.
    const int64_t heads = p_.heads, width = p_.width, first = b.first, last = b.last;
    const id_list columns = columns_;
    // what `score` has not brought near
    const int64_t ahead = Score == gw_score_add2 ? 0 : ahead_;
    const int64_t value_width = p_.value_width;
    p_.for_each_value_tile([&](auto tile, int64_t from_column, int64_t step, int64_t bytes) {
      using T = decltype(tile);
      const float* from = p_.o.value + from_column;
      const float* scale = inverse + tile.h0;
      for (const row_part part : b) {
        typename T::vec sum[T::vectors], plus[with_plus ? T::vectors : 1];
        for (auto& v : sum) v = typename T::vec{};
        for (auto& v : plus) v = typename T::vec{};
        for (int64_t p = part.begin; p < part.end; ++p) {
          if (ahead > 0 && p + ahead < last) {
            fetch<2>(from + columns[p + ahead] * value_width, bytes);
            fetch<3>(from + columns[p + 4] * value_width, bytes);
          }
          const typename T::weights weight(w + (p - first) * heads + tile.h0);
          const typename T::weights other((with_plus ? upper : w) + (p - first) * heads + tile.h0);
          tile.each(from + columns[p] * value_width, step, [&](int k, const float* at) GW_INLINE_LAMBDA {
            const auto x = tile.load_vector(k, at);
            sum[k] = vf::fused(weight[k], x, sum[k]);
            if constexpr (with_plus) plus[k] = vf::fused(other[k], x, plus[k]);
          });
        }
        const typename T::weights inverse_sum(scale);
        for (int k = 0; k < T::vectors; ++k) sum[k] *= inverse_sum[k];
        tile.store((part.slot < 0 ? out_ + part.row * width : slot(part.slot)) + tile.first(), sum);
        if constexpr (with_plus) {
          for (int k = 0; k < T::vectors; ++k) plus[k] *= inverse_sum[k];
          float* kept = part.slot < 0 ? stats_ + part.row * p_.stats_width() + problem::row_parts * heads
                                      : slot(part.slot) + width;
          tile.store(kept + tile.first(), plus);
        }
        scale += heads;
      }
    });
  }

  const problem p_;
  const id_list columns_, ids_;
  const int64_t ahead_;
  float* out_;
  float* stats_;
  int64_t slot_stride_;
  std::vector<float> slots_;
};

template <int Score>
void attend(const gw_adjacency& adj, const gw_attention_f32& operands, float* out, float* stats) {
  const attention_problem<Score> problem(operands);
  const balanced_pieces shares(adj, problem.width);
  if constexpr (attention_problem<Score>::additive)
    if (stats) return for_each_block(attention_forward<Score, true>(problem, adj, shares, out, stats), adj, shares);
  for_each_block(attention_forward<Score, false>(problem, adj, shares, out, stats), adj, shares);
}

}  // namespace gw
