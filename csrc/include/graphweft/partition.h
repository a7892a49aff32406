// Streaming partitioning with balance per label (GAP: Hanoi, section 4.3.2, algorithm 2), and what a partition costs.
//
// A node with label l goes to the part p with the largest |N(v) in p| - scale * sqrt(count[l][p] / mu_l), the lowest p
// among equals. Only two parts can be that: the emptiest of the label, or one that holds a neighbour. For among parts
// without neighbours the emptiest has the largest score, and an emptiest part with neighbours is among the others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/csr.h"

namespace gw {

// What a pass did, for bounds on operations.
struct stream_steps {
  int64_t entries = 0;     // neighbours looked at
  int64_t tree_nodes = 0;  // nodes of ordered sets that were set anew
  int64_t scores = 0;      // parts scored
};

// Counts of every label's nodes in k parts, each label's parts ordered by (count, part): a tournament tree per label,
// the first of the order at its root.
class ordered_counts {
 public:
  ordered_counts(int64_t labels, int64_t parts) : parts_(parts) {
    while (leaves_ < parts) leaves_ *= 2;
    counts_.assign(size_t(checked_mul(labels, parts)), 0);
    winners_.assign(size_t(checked_mul(labels, 2 * leaves_)), -1);
  }

  [[nodiscard]] int64_t count(int64_t label, int64_t part) const { return counts_[size_t(label * parts_ + part)]; }
  [[nodiscard]] int32_t first(int64_t label) const { return winners_[size_t(label * 2 * leaves_ + 1)]; }

  // Counts without order; `arrange` follows.
  void put(int64_t label, int64_t part) { ++counts_[size_t(label * parts_ + part)]; }

  // All counts, in the order [labels, parts]; `arrange` follows.
  void put_all(const int64_t* counts) { std::copy(counts, counts + counts_.size(), counts_.begin()); }
  void copy_to(int64_t* counts) const { std::copy(counts_.begin(), counts_.end(), counts); }

  void arrange() {
    const int64_t labels = int64_t(winners_.size()) / (2 * leaves_);
    for (int64_t label = 0; label < labels; ++label) {
      int32_t* tree = winners_.data() + label * 2 * leaves_;
      for (int64_t p = 0; p < parts_; ++p) tree[leaves_ + p] = int32_t(p);
      for (int64_t node = leaves_ - 1; node > 0; --node) tree[node] = better(label, tree[2 * node], tree[2 * node + 1]);
    }
  }

  // Changes one count and the tree above it; how many of its nodes were set.
  int64_t add(int64_t label, int64_t part, int64_t change) {
    counts_[size_t(label * parts_ + part)] += change;
    int32_t* tree = winners_.data() + label * 2 * leaves_;
    int64_t steps = 0;
    for (int64_t node = (leaves_ + part) / 2; node > 0; node /= 2) {
      const int32_t was = tree[node];
      tree[node] = better(label, tree[2 * node], tree[2 * node + 1]);
      ++steps;
      if (tree[node] == was && was != part) break;
    }
    return steps;
  }

 private:
  [[nodiscard]] int32_t better(int64_t label, int32_t a, int32_t b) const {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    const int64_t ca = count(label, a), cb = count(label, b);
    return cb < ca || (cb == ca && b < a) ? b : a;
  }

  int64_t parts_, leaves_ = 1;
  std::vector<int64_t> counts_;
  std::vector<int32_t> winners_;
};

// One pass over the nodes in order. labels [n] in [0, num_labels), or null: one label. part [n]: -1 where a node has
// none yet, in [0, k) after the pass. exhaustive: every node looks at all k parts, as Fennel does; the same result.
template <class I>
stream_steps stream_partition(const csr_view<I>& graph, int64_t k, int64_t num_labels, const int32_t* labels,
                              double scale, bool exhaustive, int32_t* part) {
  const int64_t n = graph.num_rows;
  ordered_counts counts(num_labels, k);
  std::vector<int64_t> of_label(size_t(num_labels), 0);
  const auto label_of = [&](int64_t v) { return labels == nullptr ? int64_t{0} : int64_t(labels[v]); };
  for (int64_t v = 0; v < n; ++v) {
    ++of_label[size_t(label_of(v))];
    if (part[v] >= 0) counts.put(label_of(v), part[v]);
  }
  counts.arrange();
  std::vector<double> inverse_share(of_label.size());
  for (size_t l = 0; l < of_label.size(); ++l) inverse_share[l] = double(n) / double(of_label[l]);

  std::vector<int64_t> neighbours(size_t(k), 0);
  std::vector<int32_t> adjacent;
  stream_steps steps;
  for (int64_t v = 0; v < n; ++v) {
    const int64_t label = label_of(v);
    if (part[v] >= 0) steps.tree_nodes += counts.add(label, part[v], -1);
    part[v] = -1;
    const auto score = [&](int64_t p) {
      ++steps.scores;
      const double filled = double(counts.count(label, p)) * inverse_share[size_t(label)];
      return double(neighbours[size_t(p)]) - scale * std::sqrt(filled);
    };
    const int64_t begin = graph.indptr[v], end = graph.indptr[v + 1];
    for (int64_t e = begin; e < end; ++e) {
      if (e + 16 < graph.num_edges) __builtin_prefetch(part + graph.indices[e + 16]);
      const int32_t p = part[graph.indices[e]];
      if (p >= 0 && neighbours[size_t(p)]++ == 0) adjacent.push_back(p);
    }
    steps.entries += end - begin;

    int32_t best = exhaustive ? 0 : counts.first(label);
    double most = score(best);
    const auto consider = [&](int32_t p) {
      const double value = score(p);
      if (value > most || (value == most && p < best)) most = value, best = p;
    };
    if (exhaustive) {
      for (int32_t p = 1; p < k; ++p) consider(p);
    } else {
      for (const int32_t p : adjacent) consider(p);
    }
    part[v] = best;
    steps.tree_nodes += counts.add(label, best, 1);
    for (const int32_t p : adjacent) neighbours[size_t(p)] = 0;
    adjacent.clear();
  }
  return steps;
}

// Entries whose ends lie in different parts, and per part the nodes outside that have an edge into it.
template <class I>
int64_t measure_partition(const csr_view<I>& graph, int64_t k, const int32_t* part, int64_t* halo) {
  const int64_t n = graph.num_rows;
  std::vector<int64_t> start(size_t(k) + 1, 0), members(static_cast<size_t>(n), 0);
  for (int64_t v = 0; v < n; ++v) ++start[size_t(part[v]) + 1];
  for (int64_t p = 0; p < k; ++p) start[size_t(p) + 1] += start[size_t(p)];
  std::vector<int64_t> at(start.begin(), start.end() - 1);
  for (int64_t v = 0; v < n; ++v) members[size_t(at[size_t(part[v])]++)] = v;

  std::vector<int32_t> seen_by(static_cast<size_t>(n), -1);
  int64_t cut = 0;
  for (int32_t p = 0; p < k; ++p) {
    halo[p] = 0;
    for (int64_t i = start[size_t(p)]; i < start[size_t(p) + 1]; ++i) {
      const int64_t v = members[size_t(i)];
      for (int64_t e = graph.indptr[v]; e < graph.indptr[v + 1]; ++e) {
        const int64_t u = graph.indices[e];
        if (part[u] == p) continue;
        ++cut;
        if (seen_by[size_t(u)] == p) continue;
        seen_by[size_t(u)] = p;
        ++halo[p];
      }
    }
  }
  return cut;
}

}  // namespace gw
