// Edges that rows of a batch leave out, as offsets into the row: a draw from what remains is a draw from fewer entries,
// moved on past those that are left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/parallel.h"

namespace gw {

// An offset among those that remain, as an offset among all; `skips` ascend.
inline uint32_t past_skips(uint32_t offset, const uint32_t* skips, int64_t count) {
  for (int64_t i = 0; i < count && skips[i] <= offset; ++i) ++offset;
  return offset;
}

class row_skips {
 public:
  // Edges src[i] -> dst[i] are left out of the next rows that are found.
  void set(int64_t count, const int64_t* src, const int64_t* dst) {
    next_.resize(size_t(count));
    for (int64_t i = 0; i < count; ++i) next_[size_t(i)] = {dst[i], src[i]};
    std::sort(next_.begin(), next_.end());
    next_.erase(std::unique(next_.begin(), next_.end()), next_.end());
  }

  // Takes up the edges that were set, for one batch.
  void begin() {
    starts_.clear();
    offsets_.clear();
    pairs_.swap(next_);
    next_.clear();
  }

  // Where they lie in rows `nodes`; parallel edges are all left out.
  template <class I>
  void find(const csr_view<I>& graph, const I* nodes, int64_t rows) {
    if (pairs_.empty()) return;
    starts_.assign(size_t(rows) + 1, 0);
    const int64_t chunks = (rows + grain - 1) / grain;
    std::vector<std::vector<uint32_t>> found(static_cast<size_t>(chunks));
    parallel_chunks(chunks, [&](int64_t chunk) {
      auto& offsets = found[size_t(chunk)];
      for (int64_t row = chunk * grain; row < std::min(rows, (chunk + 1) * grain); ++row) {
        const size_t before = offsets.size();
        find_in_row(graph, int64_t(nodes[row]), offsets);
        starts_[size_t(row) + 1] = int64_t(offsets.size() - before);
      }
    });
    for (size_t row = 0; row + 1 < starts_.size(); ++row) starts_[row + 1] += starts_[row];
    for (const auto& part : found) offsets_.insert(offsets_.end(), part.begin(), part.end());
  }

  // Where they lie in rows [first, last) as well, those for which `leaves_out(row)` holds.
  template <class I, class LeavesOut>
  void find_more(const csr_view<I>& graph, const I* nodes, int64_t first, int64_t last, LeavesOut&& leaves_out) {
    if (pairs_.empty()) return;
    starts_.resize(size_t(last) + 1);
    for (int64_t row = first; row < last; ++row) {
      if (leaves_out(row)) find_in_row(graph, int64_t(nodes[row]), offsets_);
      starts_[size_t(row) + 1] = int64_t(offsets_.size());
    }
  }

  [[nodiscard]] int64_t count(int64_t row) const {
    return row + 1 < int64_t(starts_.size()) ? starts_[size_t(row) + 1] - starts_[size_t(row)] : 0;
  }
  [[nodiscard]] const uint32_t* begin(int64_t row) const { return offsets_.data() + starts_[size_t(row)]; }

  void shift(int64_t row, uint32_t* out, uint32_t k) const {
    const int64_t skipped = count(row);
    if (skipped == 0) return;
    for (uint32_t i = 0; i < k; ++i) out[i] = past_skips(out[i], begin(row), skipped);
  }

  // The weights of the `n` entries that remain of a row; in `memory` where some do not.
  const float* remaining(int64_t row, const float* weights, uint32_t n, std::vector<float>& memory) const {
    const int64_t skipped = count(row);
    if (skipped == 0) return weights;
    memory.resize(n);
    for (uint32_t i = 0; i < n; ++i) memory[i] = weights[past_skips(i, begin(row), skipped)];
    return memory.data();
  }

 private:
  static constexpr int64_t grain = 128;

  template <class I>
  void find_in_row(const csr_view<I>& graph, int64_t node, std::vector<uint32_t>& offsets) const {
    const auto before = [](const std::pair<int64_t, int64_t>& pair, int64_t dst) { return pair.first < dst; };
    const auto first = std::lower_bound(pairs_.begin(), pairs_.end(), node, before);
    auto last = first;
    while (last != pairs_.end() && last->first == node) ++last;
    if (first == last) return;
    const int64_t at = graph.indptr[node], end = graph.indptr[node + 1];
    for (int64_t p = at; p < end; ++p) {
      const std::pair<int64_t, int64_t> pair{node, int64_t(graph.indices[p])};
      if (last - first == 1 ? first->second == pair.second : std::binary_search(first, last, pair))
        offsets.push_back(uint32_t(p - at));
    }
  }

  std::vector<std::pair<int64_t, int64_t>> next_, pairs_;  // (dst, src), ascending: of the next batch, and of this one
  std::vector<int64_t> starts_;                            // by row: first of its offsets
  std::vector<uint32_t> offsets_;
};

}  // namespace gw
