// Grouping the edges of a typed graph into the pairs of typed.h. Edge ids are relation after relation, so every
// relation is sorted within its own stretch: beside the result there are two ids an edge and a few numbers a node and
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/edge_blocks.h"
#include "graphweft/parallel.h"

namespace gw {

// Relation t has the edges [offsets[t], offsets[t + 1]).
struct edge_stretches {
  int64_t count;
  const int64_t* offsets;
  [[nodiscard]] int64_t begin(int64_t t) const { return offsets[t]; }
  [[nodiscard]] int64_t end(int64_t t) const { return offsets[t + 1]; }
  [[nodiscard]] int64_t edges() const { return offsets[count]; }
};

// rows[e], cols[e]: the ends of edge e.
template <class I>
void edge_ends(const gw_adjacency& adj, I* rows, I* cols) {
  const id_list columns(adj.indices, adj.wide != 0), ids(adj.edge_ids, adj.wide != 0);
  parallel_ranges(adj.num_rows, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t p = adj.indptr[row]; p < adj.indptr[row + 1]; ++p) {
        const int64_t e = adj.edge_ids ? ids[p] : p;
        if (rows) rows[e] = I(row);
        if (cols) cols[e] = I(columns[p]);
      }
  });
}

// How many nodes occur among ends[begin .. end). `seen` has a bit per node, all 0 before and after.
template <class I>
int64_t count_distinct(const I* ends, int64_t begin, int64_t end, std::vector<uint64_t>& seen) {
  int64_t count = 0;
  for (int64_t e = begin; e < end; ++e) {
    uint64_t& word = seen[size_t(ends[e]) >> 6];
    const uint64_t bit = uint64_t{1} << (uint64_t(ends[e]) & 63);
    count += (word & bit) == 0;
    word |= bit;
  }
  for (int64_t e = begin; e < end; ++e) seen[size_t(ends[e]) >> 6] = 0;
  return count;
}

// The edges [begin, end) by their own end, then by id, into `edge`. `first` is a number per node, whatever they are.
template <class I>
void sort_stretch(const I* own, int64_t begin, int64_t end, int64_t nodes, std::vector<I>& first, I* edge) {
  constexpr int64_t sparse = 8;  // from so many nodes per edge, a pass over all nodes costs more than sorting by value
  if (nodes / sparse > end - begin) {
    std::iota(edge + begin, edge + end, I(begin));
    return std::sort(edge + begin, edge + end, [&](I a, I b) { return own[a] != own[b] ? own[a] < own[b] : a < b; });
  }
  first.assign(size_t(nodes) + 1, 0);
  for (int64_t e = begin; e < end; ++e) ++first[size_t(own[e]) + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  for (int64_t e = begin; e < end; ++e) edge[begin + int64_t(first[size_t(own[e])]++)] = I(e);
}

// Chooses the end of every relation that makes fewer pairs, and sorts its edges by it: `edge` and `other` in the order
// of pairs. pairs[t]: how many there are.
template <class I>
void group_edges(const edge_stretches& types, int64_t nodes, const I* src, const I* dst, uint8_t* on_dst,
                 int64_t* pairs, I* other, I* edge) {
  struct memory {
    std::vector<uint64_t> seen;
    std::vector<I> first;
  };
  std::vector<memory> each(static_cast<size_t>(num_threads()));
  parallel_chunks(types.count, [&](int64_t t) {
    const int64_t begin = types.begin(t), end = types.end(t);
    memory& mine = each[size_t(thread_id())];
    mine.seen.resize((size_t(nodes) + 63) / 64);
    const int64_t by_dst = count_distinct(dst, begin, end, mine.seen);
    const int64_t by_src = count_distinct(src, begin, end, mine.seen);
    on_dst[t] = by_dst <= by_src;
    pairs[t] = std::min(by_dst, by_src);
    sort_stretch(on_dst[t] ? dst : src, begin, end, nodes, mine.first, edge);
    const I* far = on_dst[t] ? src : dst;
    for (int64_t p = begin; p < end; ++p) other[p] = far[edge[p]];
  });
}

// node[p] and entries[p] of the pairs, those of relation t from first_pair[t] on. The own end of every edge, in src or
// dst, becomes the number of its pair.
template <class I>
void list_pairs(const edge_stretches& types, const uint8_t* on_dst, const int64_t* first_pair, const I* edge, I* src,
                I* dst, I* node, int64_t* entries) {
  parallel_chunks(types.count, [&](int64_t t) {
    I* own = on_dst[t] ? dst : src;
    int64_t pair = first_pair[t] - 1;
    I before = -1;
    for (int64_t p = types.begin(t); p < types.end(t); ++p) {
      const I here = own[edge[p]];
      if (here != before) {
        node[++pair] = before = here;
        entries[pair] = p;
      }
      own[edge[p]] = I(pair);
    }
  });
  entries[first_pair[types.count]] = types.edges();
}

// What every node adds up: its own pairs in order (edge -1), then its edges to pairs at the other end, by id. After
// list_pairs; `to_dst`: rows are destinations.
template <class I>
void list_sums(const edge_stretches& types, const uint8_t* on_dst, const int64_t* first_pair, const I* node,
               const I* rows, const I* pairs, bool to_dst, int64_t nodes, int64_t* indptr, I* pair, I* edge) {
  const auto each = [&](auto&& own, auto&& far) {
    for (int64_t t = 0; t < types.count; ++t)
      if ((on_dst[t] != 0) == to_dst)
        for (int64_t p = first_pair[t]; p < first_pair[t + 1]; ++p) own(node[p], p);
    for (int64_t t = 0; t < types.count; ++t)
      if ((on_dst[t] != 0) != to_dst)
        for (int64_t e = types.begin(t); e < types.end(t); ++e) far(rows[e], e);
  };
  std::fill_n(indptr, nodes + 1, int64_t{0});
  const auto count = [&](I row, int64_t) { ++indptr[int64_t(row) + 1]; };
  each(count, count);
  std::partial_sum(indptr, indptr + nodes + 1, indptr);
  std::vector<int64_t> next(indptr, indptr + nodes);
  each(
      [&](I row, int64_t p) {
        const int64_t at = next[size_t(row)]++;
        pair[at] = I(p);
        edge[at] = -1;
      },
      [&](I row, int64_t e) {
        const int64_t at = next[size_t(row)]++;
        pair[at] = pairs[e];
        edge[at] = I(e);
      });
}

// out[e]: how many edges of e's relation have the end `ends[e]`.
template <class I, class T>
void same_type_counts(const edge_stretches& types, int64_t nodes, const I* ends, T* out) {
  std::vector<std::vector<I>> each(static_cast<size_t>(num_threads()));
  parallel_chunks(types.count, [&](int64_t t) {
    std::vector<I>& counts = each[size_t(thread_id())];
    counts.resize(size_t(nodes), 0);
    for (int64_t e = types.begin(t); e < types.end(t); ++e) ++counts[size_t(ends[e])];
    for (int64_t e = types.begin(t); e < types.end(t); ++e) out[e] = T(counts[size_t(ends[e])]);
    for (int64_t e = types.begin(t); e < types.end(t); ++e) counts[size_t(ends[e])] = 0;
  });
}

}  // namespace gw
