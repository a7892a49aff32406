// Multilevel partitioning with balance per label, rows of the structure in any number of pieces: clusters of nodes of
// one label, the graph between clusters, and moves of nodes between parts that keep to limits.
//
// Clusters are those of size-constrained label propagation (Meyerhenke, Sanders, Schulz: Partitioning complex networks
// via size-constrained clustering, SEA 2014). Since a cluster has one label, a graph of clusters is again a graph of
// weighted nodes with a label each, and all levels go through the same code. A piece is consecutive rows; everything
// else is O(nodes) or O(parts x labels), so the structure need not be in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/csr.h"
#include "graphweft/parallel.h"
#include "graphweft/partition.h"

namespace gw {

// Consecutive rows of a graph of weighted nodes and edges, and the labels of all nodes. Null: 1, and one label.
template <class I>
struct weighted_rows {
  csr_view<I> rows;
  int64_t first;               // node of the first row
  const int32_t* edge_weight;  // [edges of the rows]
  const int32_t* node_weight;  // [nodes]
  const int32_t* labels;       // [nodes]

  [[nodiscard]] int64_t weight(int64_t v) const { return node_weight == nullptr ? 1 : node_weight[v]; }
  [[nodiscard]] int64_t label(int64_t v) const { return labels == nullptr ? 0 : labels[v]; }
  [[nodiscard]] int64_t edge(int64_t e) const { return edge_weight == nullptr ? 1 : edge_weight[e]; }
};

// Sums of edge weights by a number in [0, size), which forget what they had in time of what was put in.
class sparse_sums {
 public:
  explicit sparse_sums(int64_t size) : sums_(size_t(size), 0) {}
  void add(int64_t at, int64_t weight) {
    if (sums_[size_t(at)] == 0) touched_.push_back(int32_t(at));
    sums_[size_t(at)] += weight;
  }
  [[nodiscard]] int64_t operator[](int64_t at) const { return sums_[size_t(at)]; }
  [[nodiscard]] const std::vector<int32_t>& touched() const { return touched_; }
  void clear() {
    for (const int32_t at : touched_) sums_[size_t(at)] = 0;
    touched_.clear();
  }

 private:
  std::vector<int64_t> sums_;
  std::vector<int32_t> touched_;
};

// As sparse_sums, of numbers of any size, in a table that is as large as what is summed and stays in a near cache. On
// cache lines of its own, as there is one a thread.
class alignas(128) hashed_sums {
 public:
  // Room for `most` different numbers; nothing may be in it.
  void reserve(int64_t most) {
    while ((int64_t{1} << bits_) < 2 * most) ++bits_;
    while (bits_ > least && (int64_t{1} << bits_) >= 4 * most) --bits_;
    if (keys_.size() < size_t{1} << bits_) {
      keys_.assign(size_t{1} << bits_, -1), sums_.resize(size_t{1} << bits_);
      used_.resize(size_t{1} << bits_), touched_.resize(size_t{1} << bits_);
    }
  }
  void add(int64_t at, int64_t weight) {
    const int64_t slot = find(at);
    if (keys_[size_t(slot)] < 0) {
      keys_[size_t(slot)] = int32_t(at), sums_[size_t(slot)] = 0;
      used_[size_t(count_)] = int32_t(slot), touched_[size_t(count_++)] = int32_t(at);
    }
    sums_[size_t(slot)] += weight;
  }
  [[nodiscard]] int64_t operator[](int64_t at) const {
    const int64_t slot = find(at);
    return keys_[size_t(slot)] < 0 ? 0 : sums_[size_t(slot)];
  }
  struct list {
    const int32_t *first, *last;
    [[nodiscard]] const int32_t* begin() const { return first; }
    [[nodiscard]] const int32_t* end() const { return last; }
    [[nodiscard]] int64_t size() const { return last - first; }
  };
  [[nodiscard]] list touched() const { return {touched_.data(), touched_.data() + count_}; }
  void clear() {
    for (int64_t i = 0; i < count_; ++i) keys_[size_t(used_[size_t(i)])] = -1;
    count_ = 0;
  }

 private:
  static constexpr int least = 6;
  [[nodiscard]] int64_t find(int64_t at) const {
    int64_t slot = int64_t((uint32_t(at) * 0x9E3779B1u) >> (32 - bits_));
    const int64_t mask = (int64_t{1} << bits_) - 1;
    while (keys_[size_t(slot)] >= 0 && keys_[size_t(slot)] != at) slot = (slot + 1) & mask;
    return slot;
  }

  std::vector<int32_t> keys_, used_, touched_;
  std::vector<int64_t> sums_;
  int64_t count_ = 0;
  int bits_ = least;
};

// The cluster of its label that row's node has most edges with and that has room; `near` is empty before and after.
template <class I>
int32_t nearest_cluster(const weighted_rows<I>& graph, int64_t row, const int64_t* most, const int32_t* cluster,
                        const int64_t* heavy, hashed_sums& near) {
  const csr_view<I>& rows = graph.rows;
  const int64_t v = graph.first + row, label = graph.label(v), weight = graph.weight(v);
  for (int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
    if (e + 16 < rows.num_edges) __builtin_prefetch(cluster + rows.indices[e + 16]);
    const int64_t u = rows.indices[e];
    if (u != v && graph.label(u) == label) near.add(cluster[u], graph.edge(e));
  }
  const int32_t own = cluster[v];
  int32_t best = own;
  int64_t score = near[own];
  for (const int32_t c : near.touched()) {
    if (c == own || near[c] < score || heavy[c] + weight > most[label]) continue;
    // of equally near ones the lightest, then the first; a node does not leave for an equal
    const bool better =
        near[c] > score || (best != own && (heavy[c] < heavy[best] || (heavy[c] == heavy[best] && c < best)));
    if (better) best = c, score = near[c];
  }
  near.clear();
  return best;
}

// Every node of the rows, in turn, joins the cluster of its label that it has most edges with and that has room: up to
// most[label]. cluster [nodes] names a node; heavy [nodes] has the weight of each cluster. How many nodes moved.
template <class I>
int64_t join_clusters(const weighted_rows<I>& graph, const int64_t* most, int32_t* cluster, int64_t* heavy) {
  const csr_view<I>& rows = graph.rows;
  hashed_sums near;
  int64_t moved = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    near.reserve(rows.indptr[row + 1] - rows.indptr[row]);
    const int32_t best = nearest_cluster(graph, row, most, cluster, heavy, near);
    const int64_t v = graph.first + row, weight = graph.weight(v);
    const int32_t own = cluster[v];
    if (best == own) continue;
    heavy[own] -= weight, heavy[best] += weight;
    cluster[v] = best;
    ++moved;
  }
  return moved;
}

// Whether an edge between two clusters is in a sample that keeps this share of the pairs; as its reverse is.
inline bool in_sample(int64_t one, int64_t other, int64_t clusters, double kept) {
  if (kept >= 1.0) return true;
  uint64_t mixed = uint64_t(std::min(one, other)) * uint64_t(clusters) + uint64_t(std::max(one, other));
  for (const int shift : {33, 29}) mixed = (mixed ^ (mixed >> shift)) * 0x9E3779B97F4A7C15u;
  return double(mixed >> 11) < kept * 0x1p53;
}

// Rows by cluster: those of cluster c are row[start[c]] to row[start[c + 1]], ascending.
struct cluster_members {
  std::vector<int64_t> start;
  std::vector<int32_t> row;

  cluster_members(const int32_t* cluster, int64_t rows, int64_t clusters)
      : start(size_t(clusters) + 2, 0), row(size_t(rows)) {
    for (int64_t r = 0; r < rows; ++r) ++start[size_t(cluster[r]) + 2];
    for (int64_t c = 0; c < clusters; ++c) start[size_t(c) + 2] += start[size_t(c) + 1];
    for (int64_t r = 0; r < rows; ++r) row[size_t(start[size_t(cluster[r]) + 1]++)] = int32_t(r);
  }
};

// What a row of clusters adds up to: how many entries, or, where there is room for them, the entries. `near` is empty
// afterwards.
inline void give_row(hashed_sums& near, int64_t c, int64_t* indptr, int32_t* indices, int32_t* weights) {
  if (indices == nullptr) {
    indptr[c + 1] = near.touched().size();
  } else {
    int64_t at = indptr[c];
    for (const int32_t other : near.touched()) {
      indices[at] = other;
      weights[at++] = int32_t(std::min<int64_t>(near[other], INT32_MAX));
    }
  }
  near.clear();
}

inline void counts_to_offsets(int64_t* indptr, int64_t rows) {
  indptr[0] = 0;
  for (int64_t row = 0; row < rows; ++row) indptr[row + 1] += indptr[row];
}

// Edges between clusters, in two calls: of every cluster, the others that its nodes among the rows have edges from, in
// the order met, and their weight. cluster [nodes] in [0, clusters). Where indices is null, indptr [clusters + 1] is
// made; else indices and weights [indptr[clusters]] are. Of pairs of clusters a share of `kept` is taken.
template <class I>
void contract_rows(const weighted_rows<I>& graph, const int32_t* cluster, int64_t clusters, double kept,
                   int64_t* indptr, int32_t* indices, int32_t* weights) {
  constexpr int64_t grain = 512;
  const csr_view<I>& rows = graph.rows;
  const cluster_members members(cluster + graph.first, rows.num_rows, clusters);
  std::vector<hashed_sums> sums(static_cast<size_t>(num_threads()));
  parallel_ranges(clusters, grain, [&](int64_t begin, int64_t end) {
    hashed_sums& near = sums[size_t(thread_id())];
    for (int64_t c = begin; c < end; ++c) {
      const int64_t first = members.start[size_t(c)], last = members.start[size_t(c) + 1];
      int64_t most = 0;
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = members.row[size_t(i)];
        most += rows.indptr[row + 1] - rows.indptr[row];
      }
      near.reserve(std::min(most, clusters));
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = members.row[size_t(i)];
        for (int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
          if (e + 16 < rows.num_edges) __builtin_prefetch(cluster + rows.indices[e + 16]);
          const int32_t other = cluster[rows.indices[e]];
          if (other != c && in_sample(c, other, clusters, kept)) near.add(other, graph.edge(e));
        }
      }
      give_row(near, c, indptr, indices, weights);
    }
  });
  if (indices == nullptr) counts_to_offsets(indptr, clusters);
}

// Entries between clusters, row by row; weight 0 does not occur.
struct cluster_rows {
  const int64_t* indptr;   // [clusters + 1]
  const int32_t* indices;  // [indptr[clusters]]
  const int32_t* weights;
};

// Two graphs between the same clusters as one, in two calls as of contract_rows: equal entries are added up, and of
// pairs of clusters a share of `kept` is taken, of both anew.
inline void merge_rows(const cluster_rows& a, const cluster_rows& b, int64_t clusters, double kept, int64_t* indptr,
                       int32_t* indices, int32_t* weights) {
  constexpr int64_t grain = 512;
  std::vector<hashed_sums> sums(static_cast<size_t>(num_threads()));
  parallel_ranges(clusters, grain, [&](int64_t begin, int64_t end) {
    hashed_sums& near = sums[size_t(thread_id())];
    for (int64_t c = begin; c < end; ++c) {
      near.reserve(a.indptr[c + 1] - a.indptr[c] + b.indptr[c + 1] - b.indptr[c]);
      for (const cluster_rows* rows : {&a, &b}) {
        for (int64_t e = rows->indptr[c]; e < rows->indptr[c + 1]; ++e)
          if (in_sample(c, rows->indices[e], clusters, kept)) near.add(rows->indices[e], rows->weights[e]);
      }
      give_row(near, c, indptr, indices, weights);
    }
  });
  if (indices == nullptr) counts_to_offsets(indptr, clusters);
}

// How full parts may be, and what deviations cost. `target` [labels]: weight of a label in a part where all are alike.
// `counted` [labels]: labels whose deviation counts. A part's spread is half the sum of |weight of the label in it -
// target| over those. A unit of weight in a part costs label_pull * (weight of its label - target) there, for labels
// that count, and weight_pull * (weight of the part - mean).
struct part_limits {
  int64_t k, num_labels;
  const double* target;
  const int32_t* counted;
  double mean_weight, most_weight, most_spread, label_pull, weight_pull;
};

// The state of an assignment. counts [num_labels + 1, k]: weights by label, and of all labels; spread [k].
struct part_state {
  int32_t* part;
  int64_t* counts;
  double* spread;
};

// Nodes between parts: what a move does to the limits, and which part takes a node.
template <class I>
class part_mover {
 public:
  part_mover(const weighted_rows<I>& graph, const part_limits& limits, const part_state& state)
      : graph_(graph), limits_(limits), state_(state), order_(limits.num_labels + 1, limits.k), near_(limits.k) {
    order_.put_all(state.counts);
    order_.arrange();
  }
  ~part_mover() { order_.copy_to(state_.counts); }
  part_mover(const part_mover&) = delete;
  part_mover& operator=(const part_mover&) = delete;

  // One node: it goes to the part within the limits with most edges less costs. Whether it moved.
  bool place(int64_t row) {
    const csr_view<I>& rows = graph_.rows;
    const int64_t v = graph_.first + row, label = graph_.label(v), weight = graph_.weight(v);
    for (int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
      if (e + 16 < rows.num_edges) __builtin_prefetch(state_.part + rows.indices[e + 16]);
      const int64_t u = rows.indices[e];
      if (u != v && state_.part[u] >= 0) near_.add(state_.part[u], graph_.edge(e));
    }
    const int32_t own = state_.part[v];
    const int32_t best = own < 0 ? first_part(label, weight) : better_part(own, label, weight);
    near_.clear();
    if (best == own) return false;
    if (own >= 0) change(own, label, -weight);
    change(best, label, weight);
    state_.part[v] = best;
    return true;
  }

 private:
  [[nodiscard]] double total(int64_t p) const { return double(order_.count(limits_.num_labels, p)); }

  // What a part's spread grows by.
  [[nodiscard]] double grown(int64_t p, int64_t label, int64_t weight) const {
    if (limits_.counted[label] == 0) return 0.0;
    const double now = double(order_.count(label, p)) - limits_.target[label];
    return 0.5 * (std::abs(now + double(weight)) - std::abs(now));
  }

  [[nodiscard]] bool may(int64_t p, int64_t label, int64_t weight) const {
    if (weight > 0 && total(p) + double(weight) > limits_.most_weight) return false;
    const double more = grown(p, label, weight);
    return more <= 0.0 || state_.spread[p] + more <= limits_.most_spread;
  }

  // Edges with a part less what a node costs there; `there`: it is in it already.
  [[nodiscard]] double value(int64_t p, int64_t label, int64_t weight, bool there) const {
    const double half = there ? -0.5 * double(weight) : 0.5 * double(weight);
    double cost = limits_.weight_pull * (total(p) + half - limits_.mean_weight);
    if (limits_.counted[label] != 0)
      cost += limits_.label_pull * (double(order_.count(label, p)) + half - limits_.target[label]);
    return double(near_[p]) - double(weight) * cost;
  }

  void change(int64_t p, int64_t label, int64_t weight) {
    state_.spread[p] += grown(p, label, weight);
    order_.add(label, p, weight);
    order_.add(limits_.num_labels, p, weight);
  }

  int32_t first_part(int64_t label, int64_t weight) {
    const int32_t emptiest = order_.first(label), lightest = order_.first(limits_.num_labels);
    int32_t best = may(emptiest, label, weight) || !may(lightest, label, weight) ? emptiest : lightest;
    double most = value(best, label, weight, false);
    const auto consider = [&](int32_t p) {
      if (!may(p, label, weight)) return;
      const double score = value(p, label, weight, false);
      if (score > most || (score == most && p < best)) most = score, best = p;
    };
    consider(lightest);
    for (const int32_t p : near_.touched()) consider(p);
    return best;
  }

  // A node of a part: another one only for a higher value; where its own is beyond the limits, also for a lower one.
  int32_t better_part(int32_t own, int64_t label, int64_t weight) {
    const double relief = grown(own, label, -weight);
    const bool over = total(own) > limits_.most_weight || (state_.spread[own] > limits_.most_spread && relief < 0.0);
    if (!over && !may(own, label, -weight)) return own;
    int32_t best = own;
    double most = over ? -HUGE_VAL : value(own, label, weight, true);
    const auto consider = [&](int32_t p) {
      if (p == own || p == best || !may(p, label, weight)) return;
      const double score = value(p, label, weight, false);
      if (score > most || (score == most && best != own && p < best)) most = score, best = p;
    };
    consider(order_.first(label));
    consider(order_.first(limits_.num_labels));
    for (const int32_t p : near_.touched()) consider(p);
    return best;
  }

  const weighted_rows<I>& graph_;
  const part_limits& limits_;
  const part_state& state_;
  ordered_counts order_;
  sparse_sums near_;
};

// Every row in turn, or by `order` [rows]; how many nodes moved.
template <class I>
int64_t place_rows(const weighted_rows<I>& graph, const part_limits& limits, const part_state& state,
                   const int64_t* order) {
  part_mover<I> mover(graph, limits, state);
  int64_t moved = 0;
  for (int64_t i = 0; i < graph.rows.num_rows; ++i) moved += mover.place(order == nullptr ? i : order[i]);
  return moved;
}

}  // namespace gw
