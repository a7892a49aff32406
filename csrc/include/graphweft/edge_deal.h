// External sorting of edges, the parts that happen in memory: edges dealt to the parts of their destinations, and the
// edges of one part compressed by destination and source. Both are counting sorts in parallel; chunks depend on sizes
// alone and results are the only stable ones, so they are the same for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/csr.h"
#include "graphweft/parallel.h"

namespace gw {

// Edges from src [n] to dst [n] as pairs [n, 2] of the new ids of destination and source, part after part of the
// destination, in the order that they came. part [nodes] in [0, parts); new_id [nodes], or null: ids stay. cuts
// [parts + 1]: where the edges of each part begin, and their number.
template <class P, class I>
void deal_edges(const int64_t* src, const int64_t* dst, int64_t n, const P* part, const I* new_id, int64_t parts,
                int64_t* cuts, I* pairs) {
  const int64_t most = std::clamp<int64_t>(n / (2 * parts), 1, 64);  // counts of all chunks are fewer than edges
  const int64_t grain = std::max<int64_t>((n + most - 1) / most, int64_t{1} << 14);
  const int64_t chunks = (n + grain - 1) / grain;
  std::vector<int64_t> at(size_t(checked_mul(chunks, parts)), 0);
  parallel_chunks(chunks, [&](int64_t chunk) {
    int64_t* count = at.data() + chunk * parts;
    const int64_t end = std::min(n, (chunk + 1) * grain);
    for (int64_t e = chunk * grain; e < end; ++e) {
      if (e + 16 < n) __builtin_prefetch(part + dst[e + 16]);
      ++count[part[dst[e]]];
    }
  });
  int64_t total = 0;
  for (int64_t p = 0; p < parts; ++p) {
    cuts[p] = total;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      int64_t& slot = at[size_t(chunk * parts + p)];
      const int64_t count = slot;
      slot = total;
      total += count;
    }
  }
  cuts[parts] = total;
  parallel_chunks(chunks, [&](int64_t chunk) {
    int64_t* cursor = at.data() + chunk * parts;
    const int64_t end = std::min(n, (chunk + 1) * grain);
    for (int64_t e = chunk * grain; e < end; ++e) {
      if (e + 16 < n) {
        __builtin_prefetch(part + dst[e + 16]);
        if (new_id != nullptr) __builtin_prefetch(new_id + dst[e + 16]), __builtin_prefetch(new_id + src[e + 16]);
      }
      I* to = pairs + 2 * cursor[part[dst[e]]]++;
      to[0] = new_id == nullptr ? I(dst[e]) : new_id[dst[e]];
      to[1] = new_id == nullptr ? I(src[e]) : new_id[src[e]];
    }
  });
}

// Pairs of a destination from `first` on and a source.
template <class I>
struct pair_entries {
  const I* pairs;
  int64_t first;

  [[nodiscard]] int64_t key(int64_t p) const { return pairs[2 * p] - first; }
  template <class Body>
  void each(int64_t begin, int64_t end, Body&& body) const {
    for (int64_t p = begin; p < end; ++p) body(p, int64_t(pairs[2 * p]) - first, int64_t(pairs[2 * p + 1]));
  }
};

// Pairs [n, 2] with destinations in [first, first + rows) as offsets indptr [rows + 1] and sources [n], ascending in
// every row. `once`: equal edges become one, and self-loops none; then fewer sources are left.
template <class I>
void compress_pairs(const I* pairs, int64_t n, int64_t first, int64_t rows, bool once, int64_t* indptr, I* sources) {
  compress(pair_entries<I>{pairs, first}, n, rows, no_payload{}, indptr, sources, static_cast<uint8_t*>(nullptr));
  std::vector<int64_t> kept(once ? size_t(rows) : 0);
  parallel_ranges(rows, 512, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      I *from = sources + indptr[row], *to = sources + indptr[row + 1];
      std::sort(from, to);
      if (!once) continue;
      I* last = std::unique(from, to);
      last = std::remove(from, last, I(first + row));
      kept[size_t(row)] = last - from;
    }
  });
  if (!once) return;
  int64_t filled = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = indptr[row];
    if (from != filled) std::copy(sources + from, sources + from + kept[size_t(row)], sources + filled);
    indptr[row] = filled;
    filled += kept[size_t(row)];
  }
  indptr[rows] = filled;
}

}  // namespace gw
