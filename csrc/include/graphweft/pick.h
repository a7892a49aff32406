// Which entries of one row a sample takes: uniform or weighted, with or without replacement.
//
// Every draw is a function of (key, node, hop, number of the draw), so a row's sample depends neither on threads nor on
// the rows around it. A sample is a list of offsets into the row; where asked for, any beginning of the list is a
// sample of that size too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "graphweft/rng.h"

namespace gw {

// Everything random in one hop of one batch.
struct draw_key {
  uint64_t seed;
  uint32_t hop;

  // The stream of block or draw number `index`; `wide` ones are apart from narrow ones.
  [[nodiscard]] uint64_t narrow(uint32_t index) const { return (uint64_t(hop) << 32) | index; }
  [[nodiscard]] uint64_t wide(uint32_t index) const { return (uint64_t{1} << 63) | narrow(index); }
};

inline uint64_t sample_seed(uint64_t seed, uint64_t epoch, uint64_t stage) {
  return mix64(seed + mix64(epoch + mix64(stage)));
}

typedef uint32_t u32x8 __attribute__((vector_size(32)));

// Up to `few` draws of 32 bits for each of eight nodes.
class lane_draws {
 public:
  static constexpr int64_t few = 64;

  void fill(const draw_key& key, u64x8 nodes, int64_t draws) {
    for (int64_t block = 0; block < (draws + 3) / 4; ++block)
      random_blocks(key.seed, key.narrow(uint32_t(block)), nodes, words_[2 * block], words_[2 * block + 1]);
  }

  // Draw number `draw` of every node, below that node's bound.
  [[nodiscard]] u32x8 below(int64_t draw, u32x8 bounds) const {
    const u64x8 words = (words_[draw / 2] >> (32 * (draw % 2))) & 0xFFFFFFFFu;
    return __builtin_convertvector((words * __builtin_convertvector(bounds, u64x8)) >> 32, u32x8);
  }

 private:
  u64x8 words_[few / 2];
};

enum class sample_kind { again, set, ordered };

// k[lane] of n[lane] offsets for each of eight rows, `most` the largest k: entry i of a lane is out[i][lane]. The same
// samples as pick_distinct makes of each row alone, or draws with replacement.
template <sample_kind Kind>
void pick_eight(const lane_draws& draws, u32x8 n, u32x8 k, int64_t most, u32x8* out) {
  u32x8 last = n - k;
  for (int64_t i = 0; i < most; ++i, last += 1) {
    if constexpr (Kind == sample_kind::again) {
      out[i] = draws.below(i, n);
    } else if constexpr (Kind == sample_kind::set) {
      const u32x8 drawn = draws.below(i, last + 1);
      decltype(n == k) taken{};
      for (int64_t p = 0; p < i; ++p) taken |= out[p] == drawn;
      out[i] = taken ? last : drawn;
    } else {  // `last` goes in front of what was drawn again, and all from there on move up; not in lanes that are done
      const u32x8 drawn = k > uint32_t(i) ? draws.below(i, last + 1) : u32x8{} - 1;
      decltype(n == k) moved{};
      u32x8 carried = last;
      for (int64_t p = 0; p < i; ++p) {
        const u32x8 here = out[p];
        moved |= here == drawn;
        out[p] = moved ? carried : here;
        carried = moved ? here : carried;
      }
      out[i] = moved ? carried : drawn;
    }
  }
}

// `k` of `n` offsets, draw(i, bound) being in [0, bound). As a set: Floyd's algorithm F; in random order: algorithm P
// (Bentley and Floyd, CACM 1987).
template <bool Ordered, class Draw>
void pick_distinct(uint32_t n, uint32_t k, Draw&& draw, uint32_t* out) {
  for (uint32_t i = 0; i < k; ++i) {
    const uint32_t last = n - k + i, drawn = uint32_t(draw(i, last + 1));
    if constexpr (Ordered) {
      uint32_t* const end = out + i;
      uint32_t* const found = std::find(out, end, drawn);
      if (found != end) std::copy_backward(found, end, end + 1);
      *found = found == end ? drawn : last;
    } else {
      bool taken = false;
      for (uint32_t p = 0; p < i; ++p) taken |= out[p] == drawn;
      out[i] = taken ? last : drawn;
    }
  }
}

// Working memory of one thread.
struct pick_memory {
  std::vector<uint32_t> order;
  std::vector<std::pair<uint32_t, uint32_t>> moved;
  std::vector<double> running;
  std::vector<float> weights;
  std::vector<std::pair<double, uint32_t>> keys;
};

// `k` of `n` offsets in random order: the first k steps of a Fisher-Yates shuffle, whose array is kept in full only
// when it is not much longer than the sample.
template <class Draw>
void pick_many(uint32_t n, uint32_t k, Draw&& draw, pick_memory& memory, uint32_t* out) {
  if (n / 4 <= k) {
    memory.order.resize(n);
    std::iota(memory.order.begin(), memory.order.end(), 0u);
    for (uint32_t i = 0; i < k; ++i) {
      std::swap(memory.order[i], memory.order[i + uint32_t(draw(i, n - i))]);
      out[i] = memory.order[i];
    }
    return;
  }
  constexpr uint32_t none = UINT32_MAX;  // no offset of a row is that large
  size_t slots = 16;
  while (slots < 2 * size_t(k)) slots *= 2;
  memory.moved.assign(slots, {none, 0});
  const auto slot = [&](uint32_t place) -> std::pair<uint32_t, uint32_t>& {
    for (size_t at = mix64(place) & (slots - 1);; at = (at + 1) & (slots - 1))
      if (memory.moved[at].first == none || memory.moved[at].first == place) return memory.moved[at];
  };
  for (uint32_t i = 0; i < k; ++i) {
    const uint32_t place = i + uint32_t(draw(i, n - i));
    const auto& mine = slot(i);
    const uint32_t value = mine.first == none ? i : mine.second;
    auto& theirs = slot(place);
    out[i] = theirs.first == none ? place : theirs.second;
    theirs = {place, value};
  }
}

// `k` draws with probability proportional to `weights`, whose sum is positive.
inline void pick_weighted_again(const float* weights, uint32_t n, uint32_t k, const draw_key& key, uint64_t node,
                                pick_memory& memory, uint32_t* out) {
  memory.running.resize(n);
  double total = 0;
  uint32_t last = 0;  // the last one with a positive weight: rounding must not carry a draw beyond it
  for (uint32_t i = 0; i < n; ++i) {
    memory.running[i] = total += double(weights[i]);
    if (weights[i] > 0) last = i;
  }
  for (uint32_t i = 0; i < k; ++i) {
    const double at = to_unit(random_u64(key.seed, key.wide(i), node)) * total;
    const auto found = std::upper_bound(memory.running.begin(), memory.running.end(), at) - memory.running.begin();
    out[i] = std::min(uint32_t(found), last);
  }
}

// `k` distinct offsets of positive weight, one after the other with probability proportional to the weights that are
// left: the smallest of independent exponential variables with those rates (Efraimidis and Spirakis, IPL 2006).
inline void pick_weighted_distinct(const float* weights, uint32_t n, uint32_t k, const draw_key& key, uint64_t node,
                                   pick_memory& memory, uint32_t* out) {
  memory.keys.clear();
  for (uint32_t i = 0; i < n; ++i) {
    if (!(weights[i] > 0)) continue;
    const double unit = to_unit(random_u64(key.seed, key.wide(i), node)) + 0x1.0p-54;  // never 0
    memory.keys.emplace_back(-std::log(unit) / double(weights[i]), i);
  }
  std::partial_sort(memory.keys.begin(), memory.keys.begin() + k, memory.keys.end());
  for (uint32_t i = 0; i < k; ++i) out[i] = memory.keys[i].second;
}

}  // namespace gw
