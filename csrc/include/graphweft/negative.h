// Pairs of nodes that are no edge, drawn uniformly and exactly: draws that hit an edge are rejected by a search in the
// sorted in-edges of the destination; where rejection does not end, the pairs that are left are counted and one of them
// is taken by its rank. Rows of the structure are destinations, their columns ascend.
//
// A draw follows from (seed, its number) alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/csr.h"
#include "graphweft/parallel.h"
#include "graphweft/rng.h"

namespace gw {

struct pair_ranges {
  int64_t src_begin, src_end, dst_begin, dst_end;
  bool loops;  // a node and itself are a pair too
};

template <class I>
class non_edges {
 public:
  non_edges(const csr_view<I>& graph, const pair_ranges& ranges) : graph_(graph), ranges_(ranges) {}

  [[nodiscard]] bool is_edge(int64_t src, int64_t dst) const {
    const I* const row = graph_.indices + graph_.indptr[dst];
    const I* const end = graph_.indices + graph_.indptr[dst + 1];
    return std::binary_search(row, end, I(src));
  }

  // `per` pairs for each of `count` keys; draw j of key k has number k * per + j.
  void pairs(int64_t count, const int64_t* keys, int64_t per, uint64_t seed, int64_t* src, int64_t* dst) {
    require(count == 0 || (width() > 0 && height() > 0), "expected nodes to draw pairs from, got none");
    const int64_t total = checked_mul(count, per);
    std::atomic<bool> complete{true};
    parallel_ranges(total, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (!draw_pair(seed, number(keys, per, i), src[i], dst[i])) complete = false;
    });
    if (complete) return;
    const std::vector<int64_t> before = count_free();
    if (before.back() == 0) throw error(bad_argument, "expected a pair of nodes without an edge, got none");
    parallel_ranges(total, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (src[i] >= 0) continue;
        const auto rank =
            int64_t(to_below(random_u64(seed, last_stream, number(keys, per, i)), uint64_t(before.back())));
        const int64_t row = std::upper_bound(before.begin(), before.end(), rank) - before.begin() - 1;
        dst[i] = ranges_.dst_begin + row;
        src[i] = free_source(dst[i], rank - before[size_t(row)]);
      }
    });
  }

  // For each of `count` sources, `per` destinations that it has no edge to.
  void tails(int64_t count, const int64_t* keys, int64_t per, uint64_t seed, const int64_t* src, int64_t* dst) {
    require(count == 0 || height() > 0, "expected nodes to draw from, got none");
    const int64_t total = checked_mul(count, per);
    std::atomic<bool> complete{true};
    parallel_ranges(total, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (!draw_tail(seed, number(keys, per, i), src[i / per], dst[i])) complete = false;
    });
    if (complete) return;
    std::unordered_map<int64_t, std::vector<int64_t>> free;
    for (int64_t i = 0; i < total; ++i) {
      if (dst[i] >= 0) continue;
      const int64_t source = src[i / per];
      auto [found, fresh] = free.try_emplace(source);
      if (fresh) found->second = free_destinations(source);
      const auto& left = found->second;
      if (left.empty())
        throw error(bad_argument, "expected a node that node " + std::to_string(source) + " has no edge to, got none");
      dst[i] = left[size_t(to_below(random_u64(seed, last_stream, number(keys, per, i)), left.size()))];
    }
  }

  // mask[i * num_dst + j]: src[i] and dst[j] are a pair without an edge.
  void mask(int64_t num_src, const int64_t* src, int64_t num_dst, const int64_t* dst, uint8_t* mask) const {
    std::vector<std::pair<int64_t, int64_t>> places(static_cast<size_t>(num_src));
    for (int64_t i = 0; i < num_src; ++i) places[size_t(i)] = {src[i], i};
    std::sort(places.begin(), places.end());
    std::fill(mask, mask + checked_mul(num_src, num_dst), uint8_t{1});
    parallel_ranges(num_dst, 16, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const auto clear = [&](int64_t source) {
          auto at = std::lower_bound(places.begin(), places.end(), std::pair<int64_t, int64_t>{source, -1});
          for (; at != places.end() && at->first == source; ++at) mask[at->second * num_dst + j] = 0;
        };
        for (int64_t p = graph_.indptr[dst[j]]; p < graph_.indptr[dst[j] + 1]; ++p) clear(int64_t(graph_.indices[p]));
        if (!ranges_.loops) clear(dst[j]);
      }
    });
  }

 private:
  static constexpr int64_t grain = 256;
  static constexpr uint64_t tries = 32, last_stream = tries;

  [[nodiscard]] int64_t width() const { return ranges_.src_end - ranges_.src_begin; }
  [[nodiscard]] int64_t height() const { return ranges_.dst_end - ranges_.dst_begin; }
  [[nodiscard]] static uint64_t number(const int64_t* keys, int64_t per, int64_t i) {
    return uint64_t(keys[i / per]) * uint64_t(per) + uint64_t(i % per);
  }
  [[nodiscard]] bool fits(int64_t src, int64_t dst) const {
    return (ranges_.loops || src != dst) && !is_edge(src, dst);
  }

  bool draw_pair(uint64_t seed, uint64_t number, int64_t& src, int64_t& dst) const {
    for (uint64_t round = 0; round < tries; ++round) {
      const u32x4 bits = random_block(seed, round, number);
      src = ranges_.src_begin + int64_t(to_below((uint64_t(bits[1]) << 32) | bits[0], uint64_t(width())));
      dst = ranges_.dst_begin + int64_t(to_below((uint64_t(bits[3]) << 32) | bits[2], uint64_t(height())));
      if (fits(src, dst)) return true;
    }
    src = dst = -1;
    return false;
  }

  bool draw_tail(uint64_t seed, uint64_t number, int64_t src, int64_t& dst) const {
    for (uint64_t round = 0; round < tries; ++round) {
      dst = ranges_.dst_begin + int64_t(to_below(random_u64(seed, round, number), uint64_t(height())));
      if (fits(src, dst)) return true;
    }
    dst = -1;
    return false;
  }

  // Calls body(source) for the sources in range that make no pair with `dst`, ascending, each once.
  template <class Body>
  void each_taken(int64_t dst, Body&& body) const {
    bool loop = !ranges_.loops && dst >= ranges_.src_begin && dst < ranges_.src_end;
    int64_t last = -1;
    for (int64_t p = graph_.indptr[dst]; p < graph_.indptr[dst + 1]; ++p) {
      const int64_t source = graph_.indices[p];
      if (source == last || source < ranges_.src_begin || source >= ranges_.src_end) continue;
      if (loop && source >= dst) {
        if (source > dst) body(dst);
        loop = false;
      }
      body(last = source);
    }
    if (loop) body(dst);
  }

  // How many pairs the destinations before each have.
  [[nodiscard]] std::vector<int64_t> count_free() const {
    std::vector<int64_t> before(size_t(height()) + 1, 0);
    parallel_ranges(height(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t left = width();
        each_taken(ranges_.dst_begin + row, [&](int64_t) { --left; });
        before[size_t(row) + 1] = left;
      }
    });
    for (size_t row = 0; row + 1 < before.size(); ++row)
      if (__builtin_add_overflow(before[row], before[row + 1], &before[row + 1]))
        throw error(bad_argument, "the number of pairs overflows 64 bits");
    return before;
  }

  // Source number `rank` of those that make a pair with `dst`.
  [[nodiscard]] int64_t free_source(int64_t dst, int64_t rank) const {
    int64_t source = ranges_.src_begin + rank;
    each_taken(dst, [&](int64_t taken) { source += taken <= source; });
    return source;
  }

  [[nodiscard]] std::vector<int64_t> free_destinations(int64_t src) const {
    std::vector<int64_t> out;
    for (int64_t dst = ranges_.dst_begin; dst < ranges_.dst_end; ++dst)
      if (fits(src, dst)) out.push_back(dst);
    return out;
  }

  csr_view<I> graph_;
  pair_ranges ranges_;
};

}  // namespace gw
