// From ids of the whole graph to numbers of a batch, in two forms with one interface: a word per node of the graph, or
// a hash table as large as the batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "graphweft/abi.h"
#include "graphweft/rng.h"
#include "graphweft/scratch.h"

namespace gw {

constexpr uint32_t unnumbered = UINT32_MAX;

// One word per node. Words of earlier batches lie below `base_`, so that nothing is cleared between batches.
class dense_numbers {
 public:
  explicit dense_numbers(int64_t num_nodes) : size_(num_nodes), words_(num_nodes) { clear(); }

  // A new batch: no id has a number.
  void start() {
    base_ += limit_;
    limit_ = 0;
  }

  // Numbers below `most` may be given from now on; `ids` have theirs, 0, 1, ...
  template <class I>
  void reserve(int64_t most, const I* ids, int64_t count) {
    require(most < int64_t{1} << 31, "sampler: a batch has 2^31 sampled edges or more");
    if (uint64_t(base_) + uint64_t(most) >= unnumbered) {
      clear();
      for (int64_t i = 0; i < count; ++i) words_[ids[i]] = base_ + uint32_t(i);
    }
    limit_ = std::max(limit_, uint32_t(most));
  }

  // Into the second cache, long before the id is looked up.
  void prefetch(int64_t id) const { __builtin_prefetch(words_.data() + id, 0, 2); }

  // `number` of `id`, which becomes `next` if it has none; tells whether it had none.
  // Half of the ids are new and nothing foretells which, so there is no branch.
  bool add(int64_t id, uint32_t next, uint32_t& number) {
    const uint32_t known = words_[id] - base_;
    const bool fresh = known >= limit_;
    number = known ^ ((known ^ next) & -uint32_t(fresh));
    words_[id] = base_ + number;
    return fresh;
  }

  // The number of `id`, which becomes `next` if it has none.
  uint32_t find_or_add(int64_t id, uint32_t next) {
    uint32_t number;
    add(id, next, number);
    return number;
  }

  // The number of `id`, or `unnumbered`.
  [[nodiscard]] uint32_t find(int64_t id) const {
    const uint32_t known = words_[id] - base_;
    return known < limit_ ? known : unnumbered;
  }

  void set(int64_t id, uint32_t number) { words_[id] = base_ + number; }

 private:
  void clear() {
    if (size_ > 0) std::memset(words_.data(), 0, size_t(size_) * sizeof(uint32_t));
    base_ = 1;
  }

  int64_t size_;
  scratch<uint32_t> words_;
  uint32_t base_ = 1, limit_ = 0;
};

// Open addressing, at most half full.
class hashed_numbers {
 public:
  explicit hashed_numbers(int64_t) { grow(int64_t{1} << 12); }

  void start() { clear(); }

  template <class I>
  void reserve(int64_t most, const I* ids, int64_t count) {
    require(most < int64_t{1} << 31, "sampler: a batch has 2^31 sampled edges or more");
    if (2 * most <= mask_ + 1) return;
    int64_t slots = mask_ + 1;
    while (slots < 2 * most) slots *= 2;
    grow(slots);
    for (int64_t i = 0; i < count; ++i) slot(ids[i])->number = uint32_t(i);
  }

  void prefetch(int64_t id) const { __builtin_prefetch(slots_->data() + place(id), 0, 2); }

  bool add(int64_t id, uint32_t next, uint32_t& number) {
    entry* found = slot(id);
    const bool fresh = found->number == unnumbered;
    if (fresh) found->number = next;
    number = found->number;
    return fresh;
  }

  // The number of `id`, which becomes `next` if it has none.
  uint32_t find_or_add(int64_t id, uint32_t next) {
    uint32_t number;
    add(id, next, number);
    return number;
  }

  [[nodiscard]] uint32_t find(int64_t id) const {
    for (int64_t at = place(id);; at = (at + 1) & mask_) {
      const entry& found = (*slots_)[at];
      if (found.id == id || found.id == no_id) return found.number;
    }
  }

  void set(int64_t id, uint32_t number) { slot(id)->number = number; }

 private:
  struct entry {
    int64_t id;
    uint32_t number;
  };
  static constexpr int64_t no_id = -1;

  [[nodiscard]] int64_t place(int64_t id) const { return int64_t(mix64(uint64_t(id))) & mask_; }

  // The entry of `id`, made if there is none.
  entry* slot(int64_t id) {
    for (int64_t at = place(id);; at = (at + 1) & mask_) {
      entry* const found = slots_->data() + at;
      if (found->id == no_id) found->id = id;
      if (found->id == id) return found;
    }
  }

  void grow(int64_t slots) {
    slots_ = std::make_unique<scratch<entry>>(slots);
    mask_ = slots - 1;
    clear();
  }

  void clear() { std::memset(slots_->data(), 0xFF, size_t(mask_ + 1) * sizeof(entry)); }

  std::unique_ptr<scratch<entry>> slots_;
  int64_t mask_ = 0;
};

}  // namespace gw
