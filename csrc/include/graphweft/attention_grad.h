// The backward pass of attention.h: one pass over the transposed adjacency gives what flows to the sources, and, but
// for `add`, one over the adjacency itself what flows to the destinations. Each computes the softmax anew, or the first
// leaves the gradients of the scores to the second where there is room for them.
#pragma once

#include <atomic>
#include <type_traits>

#include "graphweft/attention.h"

namespace gw {

// out[h] = <a, b>_h, with the bits of `dot_heads`: where one edge has all of a softmax, <dout, value> and <dout, out>
// cancel to 0. A template so that kinds of scores share what one file compiles.
template <class Number>
void row_products(int64_t heads, int64_t channels, const Number* a, const Number* b, Number* out) {
  for_each_head_tile(heads, channels, [&](auto tile) {
    using T = decltype(tile);
    typename T::vec x[T::vectors], y[T::vectors];
    tile.load(a + tile.first(), x);
    tile.load(b + tile.first(), y);
    typename T::vec t[T::sums] = {};
#pragma GCC unroll 8
    for (int k = 0; k < T::vectors; ++k) T::add_product(t, k, x[k], y[k]);
    T::sum(t, out + tile.h0, tile.c0 > 0);
  });
}

// What both passes read of a destination beside its rows: [D, 3 H] maximum, inverse sum and <dout, out>, or for `add`
// [D, 4 H] with the destination's score first.
template <int Score>
class attention_records {
 public:
  using problem = attention_problem<Score>;
  static constexpr int64_t parts = problem::additive ? 4 : 3;

  // `store` has room for parts * heads numbers per row.
  attention_records(const problem& p, int64_t rows, const float* stats, const float* out, const float* dout,
                    float* ddst, float* store)
      : heads_(p.heads), store_(store) {
    const int64_t heads = p.heads, width = p.width, kept = p.stats_width();
    parallel_ranges(rows, 256, [&](int64_t begin, int64_t end) {
      std::vector<float> upper(static_cast<size_t>(heads));
      for (int64_t i = begin; i < end; ++i) {
        float* record = store_ + i * parts * heads;
        if constexpr (problem::additive) {
          std::copy_n(p.o.dst + i * heads, heads, record);
          record += heads;
        }
        const float* numbers = stats + i * kept;
        std::copy_n(numbers, 2 * heads, record);
        float* mean = record + 2 * heads;
        row_products(heads, p.channels, dout + i * width, out + i * width, mean);
        if constexpr (problem::additive) {
          if (!ddst) continue;
          row_products(heads, p.channels, dout + i * width, numbers + problem::row_parts * heads, upper.data());
          for (int64_t h = 0; h < heads; ++h)
            ddst[i * heads + h] = (1.0f - p.slope) * (upper[size_t(h)] - mean[h] * numbers[2 * heads + h]);
        }
      }
    });
  }

  [[nodiscard]] GW_INLINE const float* row(int64_t i) const { return store_ + i * parts * heads_; }

 private:
  int64_t heads_;
  float* store_;
};

// One pass. Rows are sources when `FromSource` (the adjacency is transposed), else destinations.
template <int Score, bool FromSource>
class attention_backward {
 public:
  using problem = attention_problem<Score>;
  static constexpr bool additive = problem::additive, leaky_rows = Score == gw_score_add2;
  // `value` collects softmax * dout, `other` what comes through the score: keys, queries, or the leaky unit's halves.
  static constexpr int64_t parts = attention_records<Score>::parts;
  static constexpr bool has_value = FromSource, has_other = !additive;

  attention_backward(const problem& p, const gw_adjacency& adj, const balanced_pieces& shares,
                     const attention_records<Score>& records, const float* dout, const gw_attention_grad_f32& grad)
      : p_(p),
        columns_(adj.indices, adj.wide != 0),
        ids_(adj.edge_ids, adj.wide != 0),
        ahead_(prefetch_distance(adj.num_cols, std::min<int64_t>(512, p.width * 4))),
        records_(records),
        dout_(dout),
        grad_(grad),
        slot_stride_(2 * p.width + p.heads),
        slots_(size_t(checked_mul(shares.num_slots(), slot_stride_))),
        vector_sums_(leaky_rows && !FromSource, int64_t(shares.pieces().size()) + 1, p.width) {}

  class scratch {
   public:
    scratch(const attention_backward& owner, int64_t k) : vector_sum(owner.vector_sums_.row(k)) {}
    flat_arrays edges;
    float* vector_sum;
  };

  void block(scratch& s, const edge_block& b) const {
    const int64_t heads = p_.heads, count = b.count * heads;
    float* edge[6];
    s.edges.reserve(count, edge);
    float *z = edge[0], *t = edge[1], *d = edge[2], *inverse = edge[3], *mean = edge[4], *keep = edge[5];
    if constexpr (!additive && !FromSource)
      if (grad_.slopes) {
        kept_slopes(b, d);
        return gather(s, b, t, d);
      }
    bool shares = false;
    if constexpr (additive)
      if ((shares = p_.o.shared != 0)) shared_dots(b, d);
    if (!shares)
      dot_heads<false>(b, heads, p_.channels, columns_, FromSource ? p_.o.value : dout_,
                       FromSource ? dout_ : p_.o.value, nullptr, 0.0f, ahead_, d);
    if constexpr (!additive) score(b, z);
    spread(b, z, t, inverse, mean);
    if (p_.threshold > 0) p_.draw(ids_, b, keep);
    // t becomes the weight of dout, d the gradient of the score before its unit.
    const auto finish_scores = [&](auto drops) GW_INLINE_LAMBDA {
      for_flat(count, [&](int64_t i) GW_INLINE_LAMBDA {
        const vf::vec softmax = exp_lanes(vf::load(t + i)) * vf::load(inverse + i);
        vf::vec weight = softmax, through = vf::load(d + i);
        if constexpr (decltype(drops)::value) {
          weight *= vf::load(keep + i);
          through *= vf::load(keep + i);
        }
        vf::vec slope = softmax * (through - vf::load(mean + i));
        if constexpr (additive) slope = vf::load(z + i) > 0.0f ? slope : slope * p_.slope;
        if constexpr (Score == gw_score_dot) slope *= p_.scale;
        vf::store(t + i, weight);
        vf::store(d + i, slope);
      });
    };
    if (p_.threshold > 0)
      finish_scores(std::true_type{});
    else
      finish_scores(std::false_type{});
    if constexpr (additive) add_scores(b, d);
    if constexpr (!additive && FromSource)
      if (grad_.slopes) keep_slopes(b, d);
    gather(s, b, t, d);
  }

  void merge(const cut_row& cut) const {
    const int64_t width = p_.width;
    std::vector<float> sum(size_t(slot_stride_), 0.0f);
    for (int64_t k = cut.first_slot; k < cut.last_slot; ++k)
      for (int64_t c = 0; c < slot_stride_; ++c) sum[size_t(c)] += slot(k)[c];
    if constexpr (leaky_rows)
      for (int64_t c = 0; c < width; ++c) sum[size_t(width + c)] *= p_.o.vector[c];
    if constexpr (leaky_rows && FromSource)
      for (int64_t c = 0; c < width; ++c) sum[size_t(c)] += sum[size_t(width + c)];
    if constexpr (has_value) std::copy_n(sum.data(), p_.value_width, grad_.value + cut.row * p_.value_width);
    if constexpr (has_other && !(leaky_rows && FromSource))
      std::copy_n(sum.data() + width, width, (FromSource ? grad_.src : grad_.dst) + cut.row * width);
    if constexpr (additive) std::copy_n(sum.data() + 2 * width, p_.heads, grad_.src + cut.row * p_.heads);
  }

  void finish_vector() const {
    if (leaky_rows && !FromSource && grad_.vector) vector_sums_.finish(grad_.vector);
  }

 private:
  [[nodiscard]] float* slot(int64_t k) const { return const_cast<float*>(slots_.data()) + k * slot_stride_; }

  // The row's and the column's operand of the score, in this pass's orientation.
  [[nodiscard]] const float* sources() const { return leaky_rows ? p_.o.value : p_.o.src; }
  [[nodiscard]] const float* row_side() const { return FromSource ? sources() : p_.o.dst; }
  [[nodiscard]] const float* column_side() const { return FromSource ? p_.o.dst : sources(); }

  void score(const edge_block& b, float* z) const {
    dot_heads<leaky_rows>(b, p_.heads, p_.channels, columns_, row_side(), column_side(), p_.o.vector, p_.slope, ahead_,
                          z);
    if constexpr (Score == gw_score_dot)
      for_flat(b.count * p_.heads, [&](int64_t i) GW_INLINE_LAMBDA { vf::store(z + i, vf::load(z + i) * p_.scale); });
  }

  // out[e][h] = <value[row], dout[column]_h>: the heads' gradients against the values they share.
  void shared_dots(const edge_block& b, float* out) const {
    const int64_t heads = p_.heads, width = p_.width, value_width = p_.value_width, first = b.first, last = b.last;
    const int64_t ahead = ahead_;
    const id_list columns = columns_;
    const float *value = p_.o.value, *dout = dout_;
    p_.for_each_value_tile([&](auto tile, int64_t from_column, int64_t step, int64_t) {
      using T = decltype(tile);
      if constexpr (T::heads == T::sums) {  // packed heads are never shared
        const float* from = dout + tile.first();
        for (const row_part part : b) {
          typename T::vec a[T::vectors];
          tile.each(value + part.row * value_width + from_column, step,
                    [&](int k, const float* at) GW_INLINE_LAMBDA { a[k] = tile.load_vector(k, at); });
          for (int64_t p = part.begin; p < part.end; ++p) {
            if (ahead > 0 && p + ahead < last) fetch<2>(from + columns[p + ahead] * width, tile.bytes());
            typename T::vec t[T::sums] = {};
            tile.each(from + columns[p] * width, [&](int k, const float* at) GW_INLINE_LAMBDA {
              T::add_product(t, k, a[k], tile.load_vector(k, at));
            });
            T::sum(t, out + (p - first) * heads + tile.h0, tile.c0 > 0);
          }
        }
      }
    });
  }

  // t = score - maximum, the inverse sum and mean = <dout, out> of each edge's destination; z as well where it is a sum
  // of two scores. The scores have the forward pass's bits, so t is 0 where the maximum is.
  void spread(const edge_block& b, float* z, float* t, float* inverse, float* mean) const {
    const int64_t heads = p_.heads, first = b.first, last = b.last, ahead = ahead_;
    const id_list columns = columns_;
    const attention_records<Score> records = records_;
    const float *src = p_.o.src, slope = p_.slope;
    for (const row_part part : b)
      for_heads(heads, [&](int64_t h, auto n) GW_INLINE_LAMBDA {
        for (int64_t e = part.begin; e < part.end; ++e) {
          const int64_t at = (e - first) * heads + h;
          if (FromSource && ahead > 0 && e + ahead < last)
            fetch<2>(records.row(columns[e + ahead]) + h, 4 * ((parts - 1) * heads + n));
          const float* record = records.row(FromSource ? columns[e] : part.row) + h;
          vf::vec score;
          if constexpr (additive) {
            const vf::vec sum = some(record, n) + some(src + part.row * heads + h, n);
            put(z + at, sum, n);
            score = leaky_unit(sum, slope);
            record += heads;
          } else {
            score = some(z + at, n);
          }
          put(t + at, score - some(record, n), n);
          put(inverse + at, some(record + heads, n), n);
          put(mean + at, some(record + 2 * heads, n), n);
        }
      });
  }

  void keep_slopes(const edge_block& b, const float* d) const {
    const int64_t heads = p_.heads;
    for (int64_t e = 0; e < b.count; ++e) std::copy_n(d + e * heads, heads, grad_.slopes + ids_[b.first + e] * heads);
  }

  void kept_slopes(const edge_block& b, float* d) const {
    const int64_t heads = p_.heads;
    for (int64_t e = 0; e < b.count; ++e) std::copy_n(grad_.slopes + ids_[b.first + e] * heads, heads, d + e * heads);
  }

  void add_scores(const edge_block& b, const float* d) const {
    const int64_t heads = p_.heads, first = b.first;
    for (const row_part part : b)
      for_heads(heads, [&](int64_t h, auto n) GW_INLINE_LAMBDA {
        vf::vec total{};
        for (int64_t e = part.begin; e < part.end; ++e) total += some(d + (e - first) * heads + h, n);
        put((part.slot < 0 ? grad_.src + part.row * heads : slot(part.slot) + 2 * p_.width) + h, total, n);
      });
  }

  void gather(scratch& s, const edge_block& b, const float* weight, const float* slope) const {
    const int64_t heads = p_.heads, width = p_.width, first = b.first, last = b.last;
    const id_list columns = columns_;
    const float *dout = dout_, *others = has_other ? column_side() : nullptr;
    const float unit_slope = p_.slope;
    // scores bring the rows near where they are made
    const int64_t ahead = has_other && !FromSource && grad_.slopes ? ahead_ : 0;
    p_.for_each_value_tile([&](auto tile, int64_t, int64_t, int64_t) {
      using T = decltype(tile);
      using vec = typename T::vec;
      for (const row_part part : b) {
        vec value[has_value ? T::vectors : 1], other[has_other ? T::vectors : 1], own[leaky_rows ? T::vectors : 1];
        vec unit[leaky_rows && !FromSource ? T::vectors : 1];
        for (auto& v : value) v = vec{};
        for (auto& v : other) v = vec{};
        for (auto& v : unit) v = vec{};
        if constexpr (leaky_rows) tile.load(row_side() + part.row * width + tile.first(), own);
        for (int64_t p = part.begin; p < part.end; ++p) {
          const int64_t column = columns[p] * width + tile.first();
          if constexpr (has_other && !FromSource)
            if (ahead > 0 && p + ahead < last) {
              fetch<2>(others + columns[p + ahead] * width + tile.first(), tile.bytes());
              fetch<3>(others + columns[p + 4] * width + tile.first(), tile.bytes());
            }
          const typename T::weights w(weight + (p - first) * heads + tile.h0);
          const typename T::weights d(slope + (p - first) * heads + tile.h0);
          if constexpr (has_value)
            tile.each(dout + column, [&](int k, const float* at) GW_INLINE_LAMBDA {
              value[k] = vf::fused(w[k], tile.load_vector(k, at), value[k]);
            });
          if constexpr (has_other)
            tile.each(others + column, [&](int k, const float* at) GW_INLINE_LAMBDA {
              const vec x = tile.load_vector(k, at);
              if constexpr (leaky_rows) {
                const vec z = own[k] + x;
                other[k] += z > 0.0f ? d[k] : d[k] * unit_slope;
                if constexpr (!FromSource) unit[k] = vf::fused(d[k], leaky_unit(z, unit_slope), unit[k]);
              } else {
                other[k] = vf::fused(d[k], x, other[k]);
              }
            });
        }
        if constexpr (leaky_rows && !FromSource) add_unit(tile, unit, s.vector_sum + tile.first());
        finish(tile, part, value, other);
      }
    });
  }

  template <class T, class Vecs>
  static GW_INLINE void add_unit(const T& tile, const Vecs& unit, float* sum) {
    typename T::vec total[T::vectors];
    tile.load(sum, total);
    for (int k = 0; k < T::vectors; ++k) total[k] += unit[k];
    tile.store(sum, total);
  }

  template <class T, class Values, class Others>
  GW_INLINE void finish(const T& tile, const row_part& part, Values& value, Others& other) const {
    const int64_t width = p_.width, row = part.row * width + tile.first();
    const bool whole = part.slot < 0;
    float* kept = whole ? nullptr : slot(part.slot) + tile.first();
    if constexpr (leaky_rows) {
      if (whole) {
        typename T::vec vector[T::vectors];
        tile.load(p_.o.vector + tile.first(), vector);
        for (int k = 0; k < T::vectors; ++k) other[k] *= vector[k];
        if constexpr (FromSource)
          for (int k = 0; k < T::vectors; ++k) value[k] += other[k];
      }
    }
    if (has_value && additive && p_.o.shared)
      add_shared(tile, whole ? grad_.value + part.row * p_.value_width : slot(part.slot), value);
    else if constexpr (has_value)
      tile.store(whole ? grad_.value + row : kept, value);
    if constexpr (has_other) {
      if (!whole)
        tile.store(kept + width, other);
      else if constexpr (!(leaky_rows && FromSource))
        tile.store((FromSource ? grad_.src : grad_.dst) + row, other);
    }
  }

  // The sum over the tile's heads goes to the row they share; tiles of one row follow each other in one thread.
  template <class T, class Values>
  static GW_INLINE void add_shared(const T& tile, float* row, const Values& value) {
    for (int v = 0; v < T::per_head; ++v) {
      typename T::vec total = value[v];
      for (int k = v + T::per_head; k < T::vectors; k += T::per_head) total += value[k];
      float* at = row + tile.c0 + v * vf::lanes;
      const int lanes = int(std::min<int64_t>(vf::lanes, tile.channels - tile.c0 - v * vf::lanes));
      if (tile.h0 > 0) total += vf::load_part(at, lanes);
      vf::store_part(at, total, lanes);
    }
  }

  const problem p_;
  const id_list columns_, ids_;
  const int64_t ahead_;
  const attention_records<Score>& records_;
  const float* dout_;
  const gw_attention_grad_f32 grad_;
  int64_t slot_stride_;
  std::vector<float> slots_;
  mutable column_sums vector_sums_;
};

template <int Score, bool FromSource>
void attend_backward_pass(const attention_problem<Score>& problem, const gw_adjacency& adj,
                          const attention_records<Score>& records, const float* dout,
                          const gw_attention_grad_f32& grad) {
  const balanced_pieces shares(adj, problem.width);
  const attention_backward<Score, FromSource> pass(problem, adj, shares, records, dout, grad);
  for_each_block(pass, adj, shares);
  pass.finish_vector();
}

// Whether every edge id is that of one of the adjacency's own edges.
inline bool ids_within(const gw_adjacency& adj) {
  const id_list ids(adj.edge_ids, adj.wide != 0);
  std::atomic<bool> within{true};
  parallel_ranges(adj.edge_ids ? adj.num_edges : 0, 1 << 16, [&](int64_t begin, int64_t end) {
    bool fine = true;
    for (int64_t p = begin; p < end; ++p) fine &= uint64_t(ids[p]) < uint64_t(adj.num_edges);
    if (!fine) within = false;
  });
  return within;
}

// `transposed` has the sources as rows. Gradients of the destinations are left out when those of `grad` are null.
template <int Score>
void attend_backward(const gw_adjacency& adj, const gw_adjacency& transposed, const gw_attention_f32& operands,
                     const float* stats, const float* out, const float* dout, const gw_attention_grad_f32& wanted,
                     float* records_store) {
  const attention_problem<Score> problem(operands);
  gw_attention_grad_f32 grad = wanted;
  if (Score == gw_score_add || (grad.slopes && !(ids_within(adj) && ids_within(transposed)))) grad.slopes = nullptr;
  const attention_records<Score> records(problem, adj.num_rows, stats, out, dout, grad.dst, records_store);
  attend_backward_pass<Score, true>(problem, transposed, records, dout, grad);
  if constexpr (Score != gw_score_add)
    if (grad.dst || grad.vector) attend_backward_pass<Score, false>(problem, adj, records, dout, grad);
}

}  // namespace gw
