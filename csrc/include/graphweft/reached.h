// What a batch reaches hop by hop, as a part of it that is drawn alone has to know.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/hash.h"

namespace gw {

class reached_hops {
 public:
  // Nodes ids[ends[h - 1]] up to ids[ends[h]], the first from 0, are reached in hop h; for the next part that is drawn.
  void set(int64_t hops, const int64_t* ends, const int64_t* ids) {
    require(hops >= 0 && hops < most_hops, "sampler: a batch of more than 31 hops in parts");
    next_ends_.assign(ends, ends + hops);
    next_ids_.assign(ids, ids + (hops > 0 ? ends[hops - 1] : 0));
  }

  // Takes up what was set, for one part.
  void begin() {
    count_ = int64_t(next_ids_.size());
    if (count_ == 0) return;
    hops_.start();
    hops_.reserve(count_, static_cast<const int64_t*>(nullptr), 0);
    int64_t at = 0;
    for (size_t hop = 0; hop < next_ends_.size(); ++hop)
      for (; at < next_ends_[hop]; ++at) hops_.set(next_ids_[size_t(at)], uint32_t(hop));
    next_ids_.clear();
  }

  [[nodiscard]] bool empty() const { return count_ == 0; }

  void prefetch(int64_t id) const { hops_.prefetch(id); }

  // The hop that reaches a node, at most `most`.
  [[nodiscard]] int64_t hop_of(int64_t id, int64_t most) const {
    return std::min(most, int64_t(hops_.find(id)));  // none: as large as a number gets
  }

 private:
  static constexpr int64_t most_hops = 32;

  std::vector<int64_t> next_ends_, next_ids_;
  hashed_numbers hops_{0};
  int64_t count_ = 0;
};

}  // namespace gw
