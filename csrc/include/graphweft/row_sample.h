// Individual sampling: every row of a structure draws some of its own entries, uniformly or by weight, with or without
// replacement.
//
// Each drawn entry comes with the factor that makes weighted sums over a row's draws unbiased estimates of the sums
// over the whole row: with replacement 1 / (k q), uniformly without n / k. By weight without replacement entries have
// independent exponential keys and the k smallest are drawn; given the smallest key t of the others, an entry of weight
// w is drawn with probability 1 - exp(-w t), and dividing by that is unbiased (rank conditioning: Cohen and Kaplan,
// PODC 2007).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/parallel.h"
#include "graphweft/pick.h"

namespace gw {

// 1 / (1 - exp(-x)) for x > 0; 1 for an infinite x.
inline double inclusion_factor(double x) { return -1.0 / std::expm1(-x); }

template <class I>
class row_sampler {
 public:
  // `weights` by position, or null.
  row_sampler(const csr_view<I>& graph, const float* weights, int64_t k, bool replace)
      : graph_(graph), weights_(weights), k_(k), replace_(replace) {}

  // Where the draws of every row go: indptr [num_rows + 1].
  void sizes(int64_t* indptr) const {
    indptr[0] = 0;
    parallel_ranges(graph_.num_rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) indptr[row + 1] = drawn(row);
    });
    for (int64_t row = 0; row < graph_.num_rows; ++row) indptr[row + 1] += indptr[row];
  }

  // Positions of the drawn entries, ascending in every row. `nodes` keys the draws of the rows; null: their numbers.
  void draw(const draw_key& key, const int64_t* nodes, const int64_t* indptr, int64_t* positions,
            float* factors) const {
    std::vector<working> memory(size_t(std::max(num_threads(), 1)));
    parallel_ranges(graph_.num_rows, grain, [&](int64_t begin, int64_t end) {
      working& mine = memory[size_t(thread_id())];
      for (int64_t row = begin; row < end; ++row) {
        const int64_t count = indptr[row + 1] - indptr[row];
        if (count > 0)
          draw_row(key, row, uint64_t(nodes == nullptr ? row : nodes[row]), uint32_t(count), mine,
                   positions + indptr[row], factors + indptr[row]);
      }
    });
  }

 private:
  static constexpr int64_t grain = 256;
  struct working {
    pick_memory pick;
    std::vector<uint32_t> offsets;
  };

  [[nodiscard]] int64_t drawn(int64_t row) const {
    const int64_t at = graph_.indptr[row], degree = graph_.indptr[row + 1] - at;
    require(degree < int64_t(UINT32_MAX), "row_sample: a row has 2^32 entries");
    int64_t able = degree;
    if (weights_ != nullptr) able = std::count_if(weights_ + at, weights_ + at + degree, [](float w) { return w > 0; });
    if (k_ < 0) return able;
    return replace_ ? (able > 0 ? k_ : 0) : std::min(able, k_);
  }

  void draw_row(const draw_key& key, int64_t row, uint64_t node, uint32_t count, working& memory, int64_t* positions,
                float* factors) const {
    const int64_t at = graph_.indptr[row];
    const uint32_t n = uint32_t(graph_.indptr[row + 1] - at);
    std::vector<uint32_t>& offsets = memory.offsets;
    offsets.resize(count);
    if (weights_ == nullptr) {
      draw_uniform(key, node, n, count, memory, offsets.data());
      std::sort(offsets.begin(), offsets.end());
      std::fill(factors, factors + count, float(double(n) / count));
    } else if (replace_) {
      pick_weighted_again(weights_ + at, n, count, key, node, memory.pick, offsets.data());
      std::sort(offsets.begin(), offsets.end());
      const double total = memory.pick.running[n - 1];
      for (uint32_t i = 0; i < count; ++i) factors[i] = float(total / (count * double(weights_[at + offsets[i]])));
    } else {
      pick_weighted_distinct(weights_ + at, n, count, key, node, memory.pick, offsets.data());
      double next = HUGE_VAL;  // the smallest key that was not drawn
      for (size_t i = count; i < memory.pick.keys.size(); ++i) next = std::min(next, memory.pick.keys[i].first);
      std::sort(offsets.begin(), offsets.end());
      for (uint32_t i = 0; i < count; ++i)
        factors[i] = float(inclusion_factor(double(weights_[at + offsets[i]]) * next));
    }
    for (uint32_t i = 0; i < count; ++i) positions[i] = at + int64_t(offsets[i]);
  }

  void draw_uniform(const draw_key& key, uint64_t node, uint32_t n, uint32_t count, working& memory,
                    uint32_t* offsets) const {
    const auto draw = [&](uint32_t i, uint64_t bound) {
      return to_below(random_u64(key.seed, key.wide(i), node), bound);
    };
    if (replace_)
      for (uint32_t i = 0; i < count; ++i) offsets[i] = uint32_t(draw(i, n));
    else if (count == n)
      std::iota(offsets, offsets + count, 0u);
    else
      pick_many(n, count, draw, memory.pick, offsets);
  }

  csr_view<I> graph_;
  const float* weights_;
  int64_t k_;
  bool replace_;
};

}  // namespace gw
