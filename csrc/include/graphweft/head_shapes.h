// The heads that tiles are compiled for; 0, 0: any. A program has this file with the heads of its own model.
#pragma once

#include <cstdint>

namespace gw {

struct head_shape {
  int64_t heads, channels;
  bool shared;  // whether heads may read the same channels
};
inline constexpr head_shape head_shapes[] = {{0, 0, true}};

}  // namespace gw
