// The type of a structure's ids, chosen where it is known: 32 or 64 bits.
#pragma once

#include <cstdint>

#include "graphweft/abi.h"

namespace gw {

// body(int64_t{}) for ids of 64 bits, else body(int32_t{}). Stand-alone programs have ids of 32 bits alone.
template <class Body>
auto with_id_type(bool wide, Body&& body) {
#ifdef GW_NARROW_IDS
  require(!wide, "expected ids of 32 bits");
#else
  if (wide) return body(int64_t{});
#endif
  return body(int32_t{});
}

}  // namespace gw
