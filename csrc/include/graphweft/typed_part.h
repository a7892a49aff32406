// A part of a typed graph, nodes and edges in any order, put in order by type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/id_list.h"
#include "graphweft/parallel.h"
#include "graphweft/relation_runs.h"

namespace gw {

// From how many items of every type each piece has (first [pieces, types]) to where these begin in the order of types,
// and how many there are of each.
inline void starts_by_type(std::vector<int64_t>& first, int64_t pieces, int64_t types, int64_t* counts) {
  int64_t total = 0;
  for (int64_t type = 0; type < types; ++type) {
    const int64_t before = total;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      int64_t& at = first[size_t(piece * types + type)];
      const int64_t next = total + at;
      at = total;
      total = next;
    }
    counts[type] = total - before;
  }
}

// types[i]: the stretch of bounds that ids[i] lies in; adds to counts how many lie in each. Few stretches are compared
// with all ids, which needs no branches.
inline void find_types(int64_t count, const int64_t* ids, int64_t num_types, const int64_t* bounds, int64_t* types,
                       int64_t* counts) {
  constexpr int64_t few = 16;
  if (num_types > few) {
    for (int64_t i = 0, type = 0; i < count; ++i) {
      if (ids[i] < bounds[type] || ids[i] >= bounds[type + 1])  // neighbours are often of one type
        type = std::upper_bound(bounds, bounds + num_types, ids[i]) - bounds - 1;
      types[i] = type;
      ++counts[type];
    }
    return;
  }
  std::fill_n(types, count, int64_t{0});
  int64_t from = count;  // how many lie in this stretch or behind it
  for (int64_t type = 1; type < num_types; ++type) {
    int64_t behind = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t is_behind = ids[i] >= bounds[type];
      types[i] += is_behind;
      behind += is_behind;
    }
    counts[type - 1] += from - behind;
    from = behind;
  }
  counts[num_types - 1] += from;
}

// A stable counting sort of `ids` by the stretch of bounds that they lie in, and its inverse. Pieces count for
// themselves, and then know where theirs of every type begin.
inline void sort_by_type(int64_t count, const int64_t* ids, int64_t types, const int64_t* bounds, int64_t* order,
                         int64_t* place, int64_t* counts) {
  const int64_t grain = std::max<int64_t>(4096, 4 * types), pieces = (count + grain - 1) / grain;
  std::vector<int64_t> first(size_t(checked_mul(pieces, types)), 0);
  parallel_chunks(pieces, [&](int64_t piece) {
    const int64_t begin = piece * grain;
    find_types(std::min(count - begin, grain), ids + begin, types, bounds, place + begin, first.data() + piece * types);
  });
  starts_by_type(first, pieces, types, counts);
  parallel_chunks(pieces, [&](int64_t piece) {
    int64_t* const next = first.data() + piece * types;
    for (int64_t i = piece * grain; i < std::min(count, (piece + 1) * grain); ++i) {
      const int64_t at = next[place[i]]++;
      order[at] = i;
      place[i] = at;
    }
  });
}

template <class I>
void place_ends(int64_t edges, const int64_t* order, const int64_t* place, const int64_t* from, const int64_t* to,
                I* src, I* dst) {
  parallel_ranges(edges, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      src[i] = I(place[from[order[i]]]);
      dst[i] = I(place[to[order[i]]]);
    }
  });
}

// Offsets of the rows of a block in another order, those of sources without a row among them.
inline void offsets_in_order(const gw_adjacency& block, int64_t num_src, const int64_t* order, int64_t* indptr) {
  constexpr int64_t grain = 8192;
  std::vector<int64_t> sums(size_t((num_src + grain - 1) / grain) + 1, 0);
  parallel_ranges(num_src, grain, [&](int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = order[row];
      indptr[row + 1] = sum += from < block.num_rows ? block.indptr[from + 1] - block.indptr[from] : 0;
    }
    sums[size_t(begin / grain) + 1] = sum;
  });
  for (size_t piece = 1; piece < sums.size(); ++piece) sums[piece] += sums[piece - 1];
  indptr[0] = 0;
  parallel_ranges(num_src, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) indptr[row + 1] += sums[size_t(begin / grain)];
  });
}

// The in-edges of the sources of a block, source i in row place[i]: those of the block's rows, none of the others. Edge
// p of the block is edge edge_place[p].
template <class I>
void rows_by_type(const gw_adjacency& block, int64_t num_src, const int64_t* order, const int64_t* place,
                  const int64_t* edge_order, const int64_t* edge_place, int64_t* indptr, I* indices, I* ids) {
  const id_list columns(block.indices, block.wide != 0);
  offsets_in_order(block, num_src, order, indptr);
  parallel_ranges(num_src, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (indptr[row] == indptr[row + 1]) continue;
      const int64_t first = block.indptr[order[row]] - indptr[row];
      for (int64_t at = indptr[row]; at < indptr[row + 1]; ++at) ids[at] = I(edge_place[first + at]);
      if (!std::is_sorted(ids + indptr[row], ids + indptr[row + 1]))
        std::sort(ids + indptr[row], ids + indptr[row + 1]);
      for (int64_t at = indptr[row]; at < indptr[row + 1]; ++at) indices[at] = I(place[columns[edge_order[ids[at]]]]);
    }
  });
}

// A block whose rows are cut into runs of one relation each, of which it keeps limits[relation] edges at most.
struct block_runs {
  const int64_t* begin;
  const relation_run* runs;
  const int64_t* limits;  // null: it keeps all; negative: all of that relation

  [[nodiscard]] int64_t count(int64_t run) const {
    const int64_t all = runs[run].count, limit = limits ? limits[runs[run].relation] : -1;
    return limit < 0 ? all : std::min(all, limit);
  }
};

// As rows_by_type, of a block with runs: edges in the order of their relations, those of one relation as they come.
// Also writes counts [relations].
template <class C, class I>
void rows_by_runs(const gw_adjacency& block, const C* columns, const block_runs& runs, int64_t num_src,
                  int64_t relations, const int64_t* order, const int64_t* place, int64_t* counts, int64_t* indptr,
                  I* indices, I* ids) {
  constexpr int64_t grain = 1024;
  const int64_t pieces = (block.num_rows + grain - 1) / grain;
  std::vector<int64_t> first(size_t(checked_mul(pieces, relations)), 0);
  parallel_chunks(pieces, [&](int64_t piece) {
    int64_t* const mine = first.data() + piece * relations;
    const int64_t last = std::min(block.num_rows, (piece + 1) * grain);
    for (int64_t run = runs.begin[piece * grain]; run < runs.begin[last]; ++run)
      mine[runs.runs[run].relation] += runs.count(run);
  });
  starts_by_type(first, pieces, relations, counts);
  offsets_in_order(block, num_src, order, indptr);
  parallel_chunks(pieces, [&](int64_t piece) {
    int64_t* const next = first.data() + piece * relations;
    for (int64_t row = piece * grain; row < std::min(block.num_rows, (piece + 1) * grain); ++row) {
      const int64_t from = block.indptr[row], edges = block.indptr[row + 1] - from;
      int64_t to = indptr[place[row]];
      for (int64_t i = 0; i < edges; ++i) indices[to + i] = I(place[columns[from + i]]);
      for (int64_t run = runs.begin[row]; run < runs.begin[row + 1]; ++run) {
        int64_t& id = next[runs.runs[run].relation];
        for (const int64_t end = to + runs.count(run); to < end; ++to) ids[to] = I(id++);
      }
    }
  });
}

}  // namespace gw
