// Collective sampling: k nodes for a whole layer, uniformly or by weight, with or without replacement; and draws of
// single items from a distribution over a graph.
//
// Without replacement a node's key is a function of its id alone, not of its place among the candidates. Factors are
// those of row_sample.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"
#include "graphweft/pick.h"
#include "graphweft/rng.h"
#include "graphweft/row_sample.h"

namespace gw {

constexpr uint64_t layer_stream = uint64_t{1} << 62, item_stream = uint64_t{1} << 61;

// The place of a draw in ascending running sums whose last entry is positive; never one of weight 0.
inline int64_t place_of(const double* running, int64_t n, uint64_t bits) {
  const double at = to_unit(bits) * running[n - 1];
  const int64_t found = std::upper_bound(running, running + n, at) - running;
  return std::min(found, int64_t(std::lower_bound(running, running + n, running[n - 1]) - running));
}

// Places of the drawn nodes, ascending, each once, and their factors (with replacement times the number of draws).
// `weights` >= 0, or null for equal ones. Returns how many there are: at most k.
inline int64_t draw_nodes(int64_t n, const int64_t* ids, const double* weights, int64_t k, bool replace, uint64_t seed,
                          uint64_t hop, int64_t* places, double* factors) {
  const uint64_t stream = layer_stream | hop;
  std::vector<int64_t> able;
  for (int64_t i = 0; i < n; ++i)
    if (weights == nullptr || weights[i] > 0) able.push_back(i);
  const int64_t count = int64_t(able.size());
  if (count == 0 || k == 0) return 0;
  if (replace) {
    std::vector<double> running(static_cast<size_t>(count));
    double total = 0;
    for (int64_t i = 0; i < count; ++i)
      running[size_t(i)] = total += weights == nullptr ? 1.0 : weights[able[size_t(i)]];
    for (int64_t i = 0; i < k; ++i)
      places[i] = able[size_t(place_of(running.data(), count, random_u64(seed, stream, uint64_t(i))))];
    std::sort(places, places + k);
    int64_t made = 0;
    for (int64_t i = 0, next = 0; i < k; i = next) {
      while (next < k && places[next] == places[i]) ++next;
      const double weight = weights == nullptr ? 1.0 : weights[places[i]];
      factors[made] = double(next - i) * total / (double(k) * weight);
      places[made++] = places[i];
    }
    return made;
  }
  if (k < 0 || k >= count) {
    std::copy(able.begin(), able.end(), places);
    std::fill(factors, factors + count, 1.0);
    return count;
  }
  std::vector<std::pair<double, int64_t>> keys(static_cast<size_t>(count));
  parallel_ranges(count, int64_t{1} << 12, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = able[size_t(i)];
      const double unit = to_unit(random_u64(seed, stream, uint64_t(ids[place]))) + 0x1.0p-54;  // never 0
      keys[size_t(i)] = {-std::log(unit) / (weights == nullptr ? 1.0 : weights[place]), place};
    }
  });
  std::nth_element(keys.begin(), keys.begin() + k, keys.end());
  const double next = keys[size_t(k)].first;
  std::sort(keys.begin(), keys.begin() + k, [](const auto& a, const auto& b) { return a.second < b.second; });
  for (int64_t i = 0; i < k; ++i) {
    places[i] = keys[size_t(i)].second;
    factors[i] = weights == nullptr ? double(count) / double(k) : inclusion_factor(weights[places[i]] * next);
  }
  return k;
}

// One place in [0, n) for every item, by running sums or uniformly.
inline void draw_items(int64_t count, const int64_t* items, int64_t n, const double* running, uint64_t seed,
                       int64_t* out) {
  parallel_ranges(count, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t bits = random_u64(seed, item_stream, uint64_t(items[i]));
      out[i] = running == nullptr ? int64_t(to_below(bits, uint64_t(n))) : place_of(running, n, bits);
    }
  });
}

}  // namespace gw
