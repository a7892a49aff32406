// Ids of edges or columns whatever their width, and reads ahead of their use.
#pragma once

#include "graphweft/simd.h"

namespace gw {

// The columns of an adjacency, or its edge ids, whatever their width; position p itself where there are no ids.
class id_list {
 public:
  id_list(const void* ids, bool wide)
      : narrow_(wide ? nullptr : static_cast<const int32_t*>(ids)),
        wide_(wide ? static_cast<const int64_t*>(ids) : nullptr) {}
  GW_INLINE int64_t operator[](int64_t p) const { return narrow_ ? int64_t(narrow_[p]) : wide_ ? wide_[p] : p; }

 private:
  const int32_t* narrow_;
  const int64_t* wide_;
};

// Brings `bytes` from p on into the first-level cache (Level 3) or the second (2).
template <int Level>
GW_INLINE void fetch(const void* p, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(p) + at, 0, Level);
}

}  // namespace gw
