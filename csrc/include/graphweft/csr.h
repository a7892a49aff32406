// Compression of edges: a stable parallel counting sort by row, in two levels
// so that every write stays in cache.
//
// Level one deals the entries into buckets of consecutive rows, in input order:
// chunks of the input count, a prefix sum over (bucket, chunk) gives every
// chunk its place, chunks write. It writes straight into the output arrays,
// since a bucket's entries end up in the same stretch of them; only the row
// within the bucket (16 bits) needs scratch. Level two sorts each bucket on its
// own, small enough for the L2 cache. Chunks and buckets depend on sizes only,
// so the result is the same for any number of threads; it is also the only
// stable one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"
#include "graphweft/scratch.h"

namespace gw {

// A typed view of gw_adjacency.
template <class I>
struct csr_view {
  int64_t num_rows, num_cols, num_edges;
  const int64_t* indptr;
  const I* indices;
  const I* edge_ids;  // null: position p is edge p

  explicit csr_view(const gw_adjacency& a)
      : num_rows(a.num_rows),
        num_cols(a.num_cols),
        num_edges(a.num_edges),
        indptr(a.indptr),
        indices(static_cast<const I*>(a.indices)),
        edge_ids(static_cast<const I*>(a.edge_ids)) {}

  [[nodiscard]] int64_t id(int64_t position) const { return edge_ids ? int64_t(edge_ids[position]) : position; }
};

// Edges as given: entry p is (rows[p], cols[p]).
template <class K>
struct coo_entries {
  const K* rows;
  const K* cols;

  [[nodiscard]] int64_t key(int64_t p) const { return rows[p]; }
  template <class Body>
  void each(int64_t begin, int64_t end, Body&& body) const {
    for (int64_t p = begin; p < end; ++p) body(p, int64_t(rows[p]), int64_t(cols[p]));
  }
};

// The entries of a compressed structure, turned: entry p is (indices[p], the
// row that holds p).
template <class I>
struct turned_entries {
  const int64_t* indptr;
  int64_t num_rows;
  const I* indices;

  [[nodiscard]] int64_t key(int64_t p) const { return indices[p]; }
  template <class Body>
  void each(int64_t begin, int64_t end, Body&& body) const {
    int64_t row = std::upper_bound(indptr, indptr + num_rows + 1, begin) - indptr - 1;
    for (int64_t p = begin; p < end; ++p) {
      while (indptr[row + 1] <= p) ++row;
      body(p, int64_t(indices[p]), row);
    }
  }
};

// What travels with an entry: nothing, its position, or an element of an array.
struct no_payload {
  using type = uint8_t;
  static constexpr bool present = false;
  uint8_t operator()(int64_t) const { return 0; }
};
template <class P>
struct position_payload {
  using type = P;
  static constexpr bool present = true;
  P operator()(int64_t p) const { return P(p); }
};
template <class P>
struct array_payload {
  using type = P;
  static constexpr bool present = true;
  const P* from;
  P operator()(int64_t p) const { return from[p]; }
};

namespace detail {

constexpr int64_t bucket_rows_max = int64_t{1} << 16;  // a row within a bucket fits 16 bits
constexpr int64_t bucket_edges = int64_t{1} << 15;     // aimed at: 400 KB with payload, half an L2 cache

struct buckets {
  int shift;
  int64_t count;
};

// Buckets of 2^shift rows; as many as make them small, never more rows in one
// than 16 bits count.
inline buckets plan_buckets(int64_t num_rows, int64_t num_edges) {
  const int64_t wanted = std::clamp<int64_t>(num_edges / bucket_edges, 1, 2048);
  int shift = 0;
  while (shift < 16 && ((num_rows - 1) >> shift) + 1 > wanted) ++shift;
  return {shift, num_rows == 0 ? 0 : ((num_rows - 1) >> shift) + 1};
}

// Working memory of one thread, as large as the largest bucket it has met.
template <class I, class P>
struct sorter_memory {
  std::vector<int64_t> cursor;
  std::vector<I> indices;
  std::vector<P> payload;
};

// Sorts one bucket in place by its local row and writes the rows' offsets.
template <class I, class Payload>
void sort_bucket(int64_t row_begin, int64_t row_end, int64_t begin, int64_t end, const uint16_t* local, int64_t* indptr,
                 I* indices, typename Payload::type* payload, sorter_memory<I, typename Payload::type>& memory) {
  auto& cursor = memory.cursor;
  cursor.assign(size_t(row_end - row_begin), 0);
  bool in_order = true;
  uint16_t before = 0;
  for (int64_t p = begin; p < end; ++p) {
    in_order &= local[p] >= before;
    before = local[p];
    ++cursor[local[p]];
  }
  int64_t offset = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t count = cursor[size_t(row - row_begin)];
    indptr[row] = begin + offset;
    cursor[size_t(row - row_begin)] = begin + offset;
    offset += count;
  }
  if (in_order) return;
  memory.indices.assign(indices + begin, indices + end);
  if constexpr (Payload::present) memory.payload.assign(payload + begin, payload + end);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t to = cursor[local[p]]++;
    indices[to] = memory.indices[size_t(p - begin)];
    if constexpr (Payload::present) payload[to] = memory.payload[size_t(p - begin)];
  }
}

// Where every chunk writes in every bucket: at[chunk * count + bucket];
// starts[bucket] is the bucket's first position.
template <class Entries>
void place_chunks(const Entries& entries, int64_t num_edges, int64_t grain, buckets plan, std::vector<int64_t>& at,
                  std::vector<int64_t>& starts) {
  const int64_t chunks = (num_edges + grain - 1) / grain;
  at.assign(size_t(checked_mul(chunks, plan.count)), 0);
  parallel_chunks(chunks, [&](int64_t chunk) {
    int64_t* count = at.data() + chunk * plan.count;
    const int64_t end = std::min(num_edges, (chunk + 1) * grain);
    for (int64_t p = chunk * grain; p < end; ++p) ++count[entries.key(p) >> plan.shift];
  });
  int64_t total = 0;
  for (int64_t bucket = 0; bucket < plan.count; ++bucket) {
    starts[size_t(bucket)] = total;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      int64_t& slot = at[size_t(chunk * plan.count + bucket)];
      const int64_t count = slot;
      slot = total;
      total += count;
    }
  }
  starts[size_t(plan.count)] = total;
}

}  // namespace detail

// Compresses `num_edges` entries into indptr [num_rows + 1], indices and
// payload [num_edges]. Inside a row, entries keep their order. Keys must lie in
// [0, num_rows).
template <class I, class Entries, class Payload>
void compress(const Entries& entries, int64_t num_edges, int64_t num_rows, const Payload& payload_of, int64_t* indptr,
              I* indices, typename Payload::type* payload) {
  const detail::buckets plan = detail::plan_buckets(num_rows, num_edges);
  const int64_t grain = std::max<int64_t>(int64_t{1} << 16, (num_edges + 63) / 64);
  std::vector<int64_t> at, starts(static_cast<size_t>(plan.count) + 1, 0);
  detail::place_chunks(entries, num_edges, grain, plan, at, starts);

  scratch<uint16_t> local(num_edges);
  const int64_t mask = (int64_t{1} << plan.shift) - 1;
  parallel_chunks((num_edges + grain - 1) / grain, [&](int64_t chunk) {
    int64_t* cursor = at.data() + chunk * plan.count;
    entries.each(chunk * grain, std::min(num_edges, (chunk + 1) * grain), [&](int64_t p, int64_t row, int64_t col) {
      const int64_t to = cursor[row >> plan.shift]++;
      local[to] = uint16_t(row & mask);
      indices[to] = I(col);
      if constexpr (Payload::present) payload[to] = payload_of(p);
    });
  });

  std::vector<detail::sorter_memory<I, typename Payload::type>> memory(static_cast<size_t>(num_threads()));
  parallel_chunks(plan.count, [&](int64_t bucket) {
    const int64_t row_begin = bucket << plan.shift;
    const int64_t row_end = std::min(num_rows, row_begin + mask + 1);
    detail::sort_bucket<I, Payload>(row_begin, row_end, starts[size_t(bucket)], starts[size_t(bucket) + 1],
                                    local.data(), indptr, indices, payload, memory[size_t(thread_id())]);
  });
  indptr[num_rows] = num_edges;
}

// Offsets of entries whose rows already ascend: row r starts at the first entry
// >= r.
template <class K>
void offsets_of_sorted(const K* rows, int64_t num_edges, int64_t num_rows, int64_t* indptr) {
  parallel_ranges(num_edges, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    int64_t before = begin == 0 ? -1 : int64_t(rows[begin - 1]);
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t row = before + 1; row <= int64_t(rows[p]); ++row) indptr[row] = p;
      before = rows[p];
    }
  });
  const int64_t last = num_edges == 0 ? -1 : int64_t(rows[num_edges - 1]);
  std::fill(indptr + last + 1, indptr + num_rows + 1, num_edges);
}

struct id_summary {
  int64_t low = INT64_MAX;
  int64_t high = INT64_MIN;
  bool ascending = true;
};

// Smallest and largest id, and whether they ascend; one pass.
template <class K>
id_summary summarize_ids(const K* ids, int64_t n) {
  constexpr int64_t grain = int64_t{1} << 18;
  std::vector<id_summary> parts(size_t((n + grain - 1) / grain));
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    K low = ids[begin], high = ids[begin], falls = begin > 0 && ids[begin] < ids[begin - 1];
    for (int64_t p = begin + 1; p < end; ++p) {  // as wide as ids, so that the loop is made of vectors
      low = std::min(low, ids[p]);
      high = std::max(high, ids[p]);
      falls |= K(ids[p] < ids[p - 1]);
    }
    parts[size_t(begin / grain)] = {int64_t(low), int64_t(high), falls == 0};
  });
  id_summary all;
  for (const id_summary& part : parts) {
    all.low = std::min(all.low, part.low);
    all.high = std::max(all.high, part.high);
    all.ascending &= part.ascending;
  }
  return all;
}

// Throws with the first position whose id lies outside [0, bound).
template <class K>
void require_ids(const char* what, const K* ids, int64_t n, int64_t bound) {
  std::atomic<bool> fit{true};
  parallel_ranges(n, int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    K high = 0, signs = 0;  // two operations an id, of whole vectors
    for (int64_t p = begin; p < end; ++p) {
      high = std::max(high, ids[p]);
      signs |= ids[p];
    }
    if (signs < 0 || int64_t(high) >= bound) fit.store(false, std::memory_order_relaxed);
  });
  if (fit.load(std::memory_order_relaxed)) return;
  for (int64_t p = 0; p < n; ++p) {
    if (ids[p] >= 0 && int64_t(ids[p]) < bound) continue;
    throw error(out_of_range, std::string(what) + " in [0, " + std::to_string(bound) + "), got " +
                                  std::to_string(int64_t(ids[p])) + " at position " + std::to_string(p));
  }
}

}  // namespace gw
