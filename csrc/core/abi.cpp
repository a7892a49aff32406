// The error slot and the library's own facts.
#include "graphweft/abi.h"

#include <string>

#include "graphweft/abi_hash.h"
#include "graphweft/parallel.h"

namespace gw {
namespace {
thread_local std::string last_error;
}
void set_last_error(const char* what) noexcept {
  try {
    last_error = what;
  } catch (...) {
    last_error.clear();
  }
}
}  // namespace gw

extern "C" {

GW_API const char* gw_last_error(void) { return gw::last_error.c_str(); }

GW_API const char* gw_level(void) { return GW_LEVEL; }

// A mark of all entry points and structures, for callers that were written against them.
GW_API const char* gw_abi(void) { return GW_ABI_HASH; }

GW_API int gw_max_threads(void) { return gw::num_threads(); }

// This thread's parallel loops run on so many threads from now on.
GW_API int gw_thread_width(int32_t threads) {
  return gw::guarded([&] { gw::set_num_threads(threads); });
}
}
