// What a library of kernels compiled at run time has once: its error slot, and the core's threads. Include it in
// exactly one translation unit, compiled with GW_THREADS_HOST.
#pragma once

#include <string>

#include "graphweft/abi.h"
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
GW_API void gw_bind_threads(const gw_threads* threads) { gw::host_threads = *threads; }
}
