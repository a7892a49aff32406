// Questions about a compressed structure and edits of it, row by row in
// parallel. An edit that changes the number of edges runs twice: once to count
// per row, once to write where the counts' prefix sum says.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/rng.h"

namespace gw {

constexpr int64_t count_grain = 2048;

// True if body(begin, end) is true for any range of rows; stops early.
template <class Body>
bool any_rows(int64_t num_rows, Body&& body) {
  std::atomic<bool> found{false};
  parallel_ranges(num_rows, count_grain, [&](int64_t begin, int64_t end) {
    if (!found.load(std::memory_order_relaxed) && body(begin, end)) found.store(true, std::memory_order_relaxed);
  });
  return found.load();
}

template <class I>
bool has_loops(const csr_view<I>& a) {
  return any_rows(std::min(a.num_rows, a.num_cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      bool loop = false;  // no early exit inside a row, so that the compiler vectorises
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p) loop |= a.indices[p] == I(row);
      if (loop) return true;
    }
    return false;
  });
}

// Inside every row, values[p] ascend (strictly, if asked).
template <class I>
bool rows_ascend(const int64_t* indptr, int64_t num_rows, const I* values, bool strict) {
  return !any_rows(num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t p = indptr[row] + 1; p < indptr[row + 1]; ++p)
        if (values[p] < values[p - 1] || (strict && values[p] == values[p - 1])) return true;
    return false;
  });
}

// Whether the multiset of edges equals the multiset of turned edges, in one
// streaming pass over rows in any order: a graph is symmetric exactly if every
// hash h(u, v) occurs as often as h(v, u), and then sum h(u, v) - h(v, u) = 0
// modulo 2^64. For an asymmetric graph that sum is 0 with a chance of 2^-64.
template <class I>
bool is_symmetric(const csr_view<I>& a) {
  if (a.num_rows != a.num_cols) return false;
  std::vector<uint64_t> difference(size_t((a.num_rows + count_grain - 1) / count_grain));
  parallel_ranges(a.num_rows, count_grain, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t row_hash = mix64(uint64_t(row));
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p) {
        const uint64_t col = uint64_t(a.indices[p]);
        sum += mix64(row_hash + col) - mix64(mix64(col) + uint64_t(row));
      }
    }
    difference[size_t(begin / count_grain)] = sum;
  });
  uint64_t total = 0;
  for (const uint64_t part : difference) total += part;
  return total == 0;
}

// How often every id in [0, num_bins) occurs. Private counts per chunk while
// they are small beside the ids.
template <class I>
void count_ids(const I* ids, int64_t n, int64_t num_bins, int64_t* counts) {
  const int64_t chunks = std::clamp<int64_t>(n / (4 * std::max<int64_t>(num_bins, 1)), 1, 16);
  const int64_t grain = (n + chunks - 1) / chunks;
  std::vector<std::vector<int64_t>> parts(static_cast<size_t>(chunks - 1));
  std::fill(counts, counts + num_bins, 0);
  parallel_chunks(chunks, [&](int64_t chunk) {
    int64_t* count = counts;
    if (chunk > 0) {
      parts[size_t(chunk - 1)].assign(size_t(num_bins), 0);
      count = parts[size_t(chunk - 1)].data();
    }
    const int64_t end = std::min(n, (chunk + 1) * grain);
    for (int64_t p = chunk * grain; p < end; ++p) ++count[ids[p]];
  });
  for (const auto& part : parts)
    for (int64_t bin = 0; bin < num_bins; ++bin) counts[bin] += part[size_t(bin)];
}

// Entries of every row, or 1 over them and 0 for a row without any.
inline void row_degrees(const int64_t* indptr, int64_t num_rows, bool inverse, float* out) {
  parallel_ranges(num_rows, int64_t{1} << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float degree = float(indptr[row + 1] - indptr[row]);
      out[row] = !inverse ? degree : degree > 0 ? 1.0f / degree : 0.0f;
    }
  });
}

// Row and column of every edge, at the edge's id.
template <class I>
void to_coo(const csr_view<I>& a, int64_t* rows, int64_t* cols) {
  parallel_ranges(a.num_rows, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p) {
        rows[a.id(p)] = row;
        cols[a.id(p)] = int64_t(a.indices[p]);
      }
  });
}

// Rows `rows[i]` one after the other; out_indptr holds their offsets. `payload`
// null: the entries' edge ids travel.
template <class I, class P>
void take_rows(const csr_view<I>& a, const int64_t* rows, int64_t n, const int64_t* out_indptr, const P* payload,
               I* out_indices, P* out_payload) {
  parallel_ranges(n, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = a.indptr[rows[i]], count = a.indptr[rows[i] + 1] - from, to = out_indptr[i];
      std::copy_n(a.indices + from, count, out_indices + to);
      if (out_payload == nullptr) continue;
      for (int64_t k = 0; k < count; ++k) out_payload[to + k] = payload ? payload[from + k] : P(a.id(from + k));
    }
  });
}

// Rows `rows[i]` one after the other, columns under the numbers place[column]; ids null: edge ids are not wanted.
template <class I>
void renumber_rows(const csr_view<I>& a, const int64_t* rows, int64_t n, const I* place, const int64_t* out_indptr,
                   I* out_indices, I* out_ids) {
  parallel_ranges(n, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = a.indptr[rows[i]], count = a.indptr[rows[i] + 1] - from, to = out_indptr[i];
      if (i + 4 < end) __builtin_prefetch(a.indices + a.indptr[rows[i + 4]]);
      for (int64_t k = 0; k < count; ++k) out_indices[to + k] = place[a.indices[from + k]];
      for (int64_t k = 0; out_ids != nullptr && k < count; ++k) out_ids[to + k] = I(a.id(from + k));
    }
  });
}

// At most `most` entries of every row, as far from each other as they can be; out_indptr holds their offsets.
template <class I>
void thin_rows(const csr_view<I>& a, int64_t most, const int64_t* out_indptr, I* out_indices) {
  parallel_ranges(a.num_rows, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = a.indptr[row], count = a.indptr[row + 1] - from, kept = std::min(count, most);
      I* out = out_indices + out_indptr[row];
      for (int64_t k = 0; k < kept; ++k) out[k] = a.indices[from + k * count / kept];
    }
  });
}

// A set of edge ids that answers "how many members are below id" at once: for every 64 ids their bits and the number of
// members before them, side by side, so that a question costs one cache line.
class ranked_set {
 public:
  ranked_set(const uint8_t* member, int64_t n) : blocks_((n + 63) / 64 + 1) {
    const int64_t count = (n + 63) / 64;
    parallel_ranges(count, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        uint64_t bits = 0;
        for (int64_t i = b * 64; i < std::min(n, b * 64 + 64); ++i) bits |= uint64_t(member[i] != 0) << (i & 63);
        blocks_[b].bits = bits;
      }
    });
    int64_t total = 0;
    for (int64_t b = 0; b < count; ++b) {
      blocks_[b].before = total;
      total += __builtin_popcountll(blocks_[b].bits);
    }
  }
  [[nodiscard]] bool contains(int64_t id) const { return (blocks_[id >> 6].bits >> (id & 63)) & 1; }
  [[nodiscard]] int64_t rank(int64_t id) const {
    const block& b = blocks_[id >> 6];
    return b.before + __builtin_popcountll(b.bits & ((uint64_t{1} << (id & 63)) - 1));
  }

 private:
  struct block {
    uint64_t bits;
    int64_t before;
  };
  scratch<block> blocks_;
};

// The edges that `keep`, renumbered without gaps in the order of their ids.
// First call: out_indices null, counts per row into out_indptr[row]. Second
// call: out_indptr holds offsets.
template <class I>
void filter_edges(const csr_view<I>& a, const ranked_set& keep, int64_t* out_indptr, I* out_indices, I* out_ids) {
  parallel_ranges(a.num_rows, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t to = out_indices ? out_indptr[row] : 0;
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p) {
        if (!keep.contains(a.id(p))) continue;
        if (out_indices) out_indices[to] = a.indices[p];
        if (out_ids) out_ids[to] = I(keep.rank(a.id(p)));
        ++to;
      }
      if (!out_indices) out_indptr[row] = to;
    }
  });
}

// Clears member[id] of every self-loop.
template <class I>
void clear_loops(const csr_view<I>& a, uint8_t* member) {
  parallel_ranges(std::min(a.num_rows, a.num_cols), count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p)
        if (a.indices[p] == I(row)) member[a.id(p)] = 0;
  });
}

// Row by row the union of two structures with ascending columns, each column
// once. First call: out_indices null, counts into out_indptr[row]; second call:
// out_indptr holds offsets.
template <class I>
void unite_rows(const csr_view<I>& a, const csr_view<I>& b, int64_t* out_indptr, I* out_indices) {
  parallel_ranges(a.num_rows, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t p = a.indptr[row], q = b.indptr[row], to = out_indices ? out_indptr[row] : 0;
      const int64_t p_end = a.indptr[row + 1], q_end = b.indptr[row + 1];
      while (p < p_end || q < q_end) {
        const I col = q == q_end || (p < p_end && a.indices[p] <= b.indices[q]) ? a.indices[p] : b.indices[q];
        while (p < p_end && a.indices[p] == col) ++p;
        while (q < q_end && b.indices[q] == col) ++q;
        if (out_indices) out_indices[to] = col;
        ++to;
      }
      if (!out_indices) out_indptr[row] = to;
    }
  });
}

// Clears member[id] of as many edges of `a` as `b` has copies of them, the
// youngest first. Columns ascend in both; inside a run of equal columns of `a`
// the ids ascend.
template <class I>
void clear_common(const csr_view<I>& a, const csr_view<I>& b, uint8_t* member) {
  parallel_ranges(a.num_rows, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t p = a.indptr[row + 1], q = b.indptr[row + 1];
      while (p > a.indptr[row] && q > b.indptr[row]) {
        const I mine = a.indices[p - 1], theirs = b.indices[q - 1];
        if (mine == theirs) member[a.id(p - 1)] = 0;
        p -= mine >= theirs;
        q -= theirs >= mine;
      }
    }
  });
}

// Row by row the entries of `a`, then those of `b`, numbered after them. out_indptr holds offsets.
template <class I>
void concat_rows(const csr_view<I>& a, const csr_view<I>& b, const int64_t* out_indptr, I* out_indices, I* out_ids) {
  parallel_ranges(a.num_rows, count_grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t to = out_indptr[row];
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p, ++to) {
        out_indices[to] = a.indices[p];
        if (out_ids) out_ids[to] = I(a.id(p));
      }
      for (int64_t p = b.indptr[row]; p < b.indptr[row + 1]; ++p, ++to) {
        out_indices[to] = b.indices[p];
        if (out_ids) out_ids[to] = I(a.num_edges + b.id(p));
      }
    }
  });
}

}  // namespace gw
