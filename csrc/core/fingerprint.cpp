// Entry point of fingerprints.
#include "graphweft/fingerprint.h"

#include "graphweft/abi.h"

extern "C" {

// out[2] = a fingerprint of `bytes` bytes of memory.
GW_API int gw_fingerprint(const void* memory, int64_t bytes, uint64_t* out) {
  return gw::guarded([&] {
    gw::require(bytes >= 0 && out && (memory || bytes == 0), "gw_fingerprint: a size is negative or memory is missing");
    const gw::fingerprint made = gw::fingerprint_of(memory, bytes);
    out[0] = made.low;
    out[1] = made.high;
  });
}
}
