// Groups of nodes, each with the edges among its own: the bounded neighbourhoods of single nodes (ShaDow: Zeng et al.,
// NeurIPS 2021), or groups as given. A batch is their disjoint union, numbered with the first node of every group in
// front; a node that is in several groups has several numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/hash.h"
#include "graphweft/parallel.h"
#include "graphweft/pick.h"
#include "graphweft/subset.h"

namespace gw {

class ego_sampler {
 public:
  struct sizes {
    int64_t nodes = 0, edges = 0;
  };
  ego_sampler() = default;
  ego_sampler(const ego_sampler&) = delete;
  ego_sampler& operator=(const ego_sampler&) = delete;
  virtual ~ego_sampler() = default;

  // Neighbourhoods of the roots: hop h draws up to fanouts[h] in-edges of every node it has reached, negative: all.
  virtual sizes draw(int64_t count, const int64_t* roots, const std::vector<int64_t>& fanouts, bool replace,
                     uint64_t seed) = 0;
  // Group i has the nodes ids[starts[i] .. starts[i + 1]), repeats left out.
  virtual sizes group(int64_t count, const int64_t* starts, const int64_t* ids) = 0;
  virtual void write(int64_t* nodes, int64_t* owners, int64_t* indptr, int32_t* indices, uint32_t* offsets) const = 0;
};

template <class I, class Numbers>
class ego_sampler_of final : public ego_sampler {
 public:
  // ascending: columns ascend in every row, so that a few nodes are found in a long one by bisection.
  ego_sampler_of(const csr_view<I>& graph, const float* weights, bool ascending)
      : graph_(graph), weights_(weights), ascending_(ascending) {}

  sizes draw(int64_t count, const int64_t* roots, const std::vector<int64_t>& fanouts, bool replace,
             uint64_t seed) override {
    for (int64_t i = 0; i < count; ++i) require_node(roots[i], graph_.num_rows, i);
    return make(count, [&](int64_t i, working& memory, group_of& out) {
      reach(roots[i], fanouts, replace, seed, memory, out.nodes);
    });
  }

  sizes group(int64_t count, const int64_t* starts, const int64_t* ids) override {
    for (int64_t i = 0; i < count; ++i)
      require(starts[i] >= 0 && starts[i] < starts[i + 1], "ego: a group has no node");
    for (int64_t p = 0; count > 0 && p < starts[count]; ++p) require_node(ids[p], graph_.num_rows, p);
    return make(count, [&](int64_t i, working& memory, group_of& out) {
      memory.numbers.start();
      memory.numbers.template reserve<I>(starts[i + 1] - starts[i], nullptr, 0);
      for (int64_t p = starts[i]; p < starts[i + 1]; ++p) add(ids[p], memory, out.nodes);
    });
  }

  void write(int64_t* nodes, int64_t* owners, int64_t* indptr, int32_t* indices, uint32_t* offsets) const override {
    std::vector<int64_t> starts(size_t(count_) + 1, 0);  // by group: nodes before it, first ones left out
    for (int64_t i = 0; i < count_; ++i)
      starts[size_t(i) + 1] = starts[size_t(i)] + int64_t(groups_[size_t(i)].nodes.size()) - 1;
    const auto number = [&](int64_t group, int64_t inner) {
      return inner == 0 ? group : count_ + starts[size_t(group)] + inner - 1;
    };
    indptr[0] = 0;
    for (int64_t i = 0; i < count_; ++i)
      for (size_t row = 0; row < groups_[size_t(i)].nodes.size(); ++row) {
        const int64_t mine = number(i, int64_t(row));
        nodes[mine] = groups_[size_t(i)].nodes[row];
        owners[mine] = i;
        indptr[mine + 1] = groups_[size_t(i)].counts[row];
      }
    const int64_t total = count_ + starts[size_t(count_)];
    for (int64_t row = 0; row < total; ++row) indptr[row + 1] += indptr[row];
    parallel_ranges(count_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const kept_entry* from = groups_[size_t(i)].entries.data();
        for (size_t row = 0; row < groups_[size_t(i)].nodes.size(); ++row) {
          int64_t at = indptr[number(i, int64_t(row))];
          for (int64_t e = 0; e < groups_[size_t(i)].counts[row]; ++e, ++from, ++at) {
            indices[at] = int32_t(number(i, from->column));
            offsets[at] = from->offset;
          }
        }
      }
    });
  }

 private:
  static constexpr int64_t grain = 4;
  static constexpr int64_t bisected = 16;  // a row so many times as long as its group is not walked through

  struct group_of {
    std::vector<int64_t> nodes, counts;  // counts: entries by row
    std::vector<kept_entry> entries;
  };
  struct working {
    explicit working(int64_t nodes) : numbers(nodes) {}
    Numbers numbers;
    pick_memory pick;
    std::vector<uint32_t> offsets;
    std::vector<std::pair<int64_t, int32_t>> sorted;  // ids and numbers of a group
  };

  template <class Nodes>
  sizes make(int64_t count, Nodes&& nodes_of) {
    count_ = count;
    while (memory_.size() < size_t(std::max(num_threads(), 1)))
      memory_.push_back(std::make_unique<working>(graph_.num_rows));
    if (groups_.size() < size_t(count)) groups_.resize(size_t(count));
    parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
      working& memory = *memory_[size_t(thread_id())];
      for (int64_t i = begin; i < end; ++i) {
        group_of& out = groups_[size_t(i)];
        out.nodes.clear();
        out.counts.clear();
        out.entries.clear();
        nodes_of(i, memory, out);
        induce(memory, out);
      }
    });
    sizes made;
    for (int64_t i = 0; i < count; ++i) {
      made.nodes += int64_t(groups_[size_t(i)].nodes.size());
      made.edges += int64_t(groups_[size_t(i)].entries.size());
    }
    require(made.nodes < int64_t{1} << 31, "ego: a batch has 2^31 nodes or more");
    return made;
  }

  static void add(int64_t id, working& memory, std::vector<int64_t>& nodes) {
    if (memory.numbers.find_or_add(id, uint32_t(nodes.size())) == nodes.size()) nodes.push_back(id);
  }

  void reach(int64_t root, const std::vector<int64_t>& fanouts, bool replace, uint64_t seed, working& memory,
             std::vector<int64_t>& nodes) {
    const uint64_t own = mix64(seed ^ mix64(uint64_t(root)));  // groups draw apart from each other
    memory.numbers.start();
    memory.numbers.template reserve<I>(1, nullptr, 0);
    add(root, memory, nodes);
    size_t begin = 0;
    for (size_t hop = 0; hop < fanouts.size(); ++hop) {
      const size_t end = nodes.size();
      for (size_t row = begin; row < end; ++row) {
        const int64_t at = graph_.indptr[nodes[row]];
        const uint32_t taken = pick(nodes[row], fanouts[hop], replace, {own, uint32_t(hop)}, memory);
        memory.numbers.reserve(int64_t(nodes.size()) + taken, nodes.data(), int64_t(nodes.size()));
        for (uint32_t i = 0; i < taken; ++i) add(int64_t(graph_.indices[at + memory.offsets[i]]), memory, nodes);
      }
      begin = end;
    }
  }

  // Offsets of the in-edges that a node draws, into memory.offsets; returns how many.
  uint32_t pick(int64_t node, int64_t fanout, bool replace, const draw_key& key, working& memory) const {
    const int64_t at = graph_.indptr[node];
    const uint32_t n = uint32_t(graph_.indptr[node + 1] - at);
    uint32_t able = n;
    if (weights_ != nullptr)
      able = uint32_t(std::count_if(weights_ + at, weights_ + at + n, [](float w) { return w > 0; }));
    const uint32_t k = fanout < 0 ? able
                       : replace  ? (able > 0 ? uint32_t(fanout) : 0)
                                  : uint32_t(std::min<int64_t>(able, fanout));
    memory.offsets.resize(k);
    if (k == 0) return 0;
    const auto draw = [&](uint32_t i, uint64_t bound) {
      return to_below(random_u64(key.seed, key.wide(i), uint64_t(node)), bound);
    };
    if (weights_ != nullptr)
      (replace ? pick_weighted_again : pick_weighted_distinct)(weights_ + at, n, k, key, uint64_t(node), memory.pick,
                                                               memory.offsets.data());
    else if (replace)
      for (uint32_t i = 0; i < k; ++i) memory.offsets[i] = uint32_t(draw(i, n));
    else if (k == n)
      std::iota(memory.offsets.begin(), memory.offsets.end(), 0u);
    else
      pick_many(n, k, draw, memory.pick, memory.offsets.data());
    return k;
  }

  // The edges among the nodes of a group, which have their numbers; in each row in the graph's order.
  void induce(working& memory, group_of& out) {
    const int64_t count = int64_t(out.nodes.size());
    if (ascending_) {
      memory.sorted.clear();
      for (int64_t i = 0; i < count; ++i) memory.sorted.emplace_back(out.nodes[size_t(i)], int32_t(i));
      std::sort(memory.sorted.begin(), memory.sorted.end());
    }
    for (const int64_t node : out.nodes) {
      const I *const first = graph_.indices + graph_.indptr[node], *const last =
                                                                       graph_.indices + graph_.indptr[node + 1];
      const size_t before = out.entries.size();
      if (ascending_ && last - first > bisected * count) {
        const I* at = first;
        for (const auto& [id, number] : memory.sorted)
          for (at = std::lower_bound(at, last, I(id)); at < last && int64_t(*at) == id; ++at)
            out.entries.push_back({number, uint32_t(at - first)});
      } else {
        for (const I* at = first; at < last; ++at) {
          const uint32_t number = memory.numbers.find(int64_t(*at));
          if (number != unnumbered) out.entries.push_back({int32_t(number), uint32_t(at - first)});
        }
      }
      out.counts.push_back(int64_t(out.entries.size() - before));
    }
  }

  csr_view<I> graph_;
  const float* weights_;
  bool ascending_;
  std::vector<std::unique_ptr<working>> memory_;
  std::vector<group_of> groups_;
  int64_t count_ = 0;
};

}  // namespace gw
