// The order of the finite scores of one row, lowest first, equal ones by their place. Floats are sorted as integers in
// the same order, digit by digit; their places, in the lower half of the keys, stay in order by themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace gw {

// Bits in the order of the numbers; -0 is 0.
inline uint32_t ordered_bits(float value) {
  value += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <class Real>
class score_order {
 public:
  // Places of the finite ones among `count` scores (of type Real, widened), as place(0), place(1), ...; how many.
  size_t sort(const double* scores, int64_t count) {
    items_.resize(size_t(count));
    size_t finite = 0;
    for (int64_t at = 0; at < count; ++at) {
      if (!std::isfinite(scores[at])) continue;
      if constexpr (packed)
        items_[finite++] = uint64_t(ordered_bits(float(scores[at]))) << 32 | uint64_t(at);
      else
        items_[finite++] = {scores[at], at};
    }
    items_.resize(finite);
    if constexpr (packed)
      sort_digits();
    else
      std::sort(items_.begin(), items_.end(), [](const item& x, const item& y) {
        return x.score != y.score ? x.score < y.score : x.place < y.place;
      });
    return finite;
  }

  [[nodiscard]] size_t place(size_t at) const {
    if constexpr (packed)
      return size_t(uint32_t(items_[at]));
    else
      return size_t(items_[at].place);
  }

 private:
  static constexpr bool packed = std::is_same_v<Real, float>;
  static constexpr int digit_bits = 8, digits = 4, buckets = 1 << digit_bits;
  struct item {
    double score;
    int64_t place;
  };

  static size_t digit_of(uint64_t key, int digit) { return size_t(key >> (32 + digit * digit_bits)) % buckets; }

  // One pass a digit, the lowest first, but for digits that all have in common.
  void sort_digits() {
    uint32_t counts[digits][buckets] = {};
    for (const uint64_t key : items_)
      for (int digit = 0; digit < digits; ++digit) ++counts[digit][digit_of(key, digit)];
    moved_.resize(items_.size());
    for (int digit = 0; digit < digits; ++digit) {
      uint32_t* next = counts[digit];
      if (items_.empty() || next[digit_of(items_[0], digit)] == items_.size()) continue;
      uint32_t sum = 0;
      for (int bucket = 0; bucket < buckets; ++bucket) {
        const uint32_t many = next[bucket];
        next[bucket] = sum;
        sum += many;
      }
      for (const uint64_t key : items_) moved_[next[digit_of(key, digit)]++] = key;
      items_.swap(moved_);
    }
  }

  std::vector<std::conditional_t<packed, uint64_t, item>> items_, moved_;
};

}  // namespace gw
