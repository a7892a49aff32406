// Entry points whose kernels lie in a library of their own, which is compiled when one of them is first called.
#pragma once

#include <atomic>

#include "graphweft/abi.h"

namespace gw {

// Where an entry point is found once its library is loaded; null before.
struct first_use_entry {
  const char* name;
  const char* kernels;  // the library's name
  std::atomic<void*> function{nullptr};
  std::atomic<const char* (*)()> last_error{nullptr};
};

// Calls it, or returns `not_compiled` with the library's name as the message.
template <class... Args>
int call_first_use(const first_use_entry& entry, int (* /*signature*/)(Args...), Args... args) {
  void* function = entry.function.load(std::memory_order_acquire);
  if (!function) {
    set_last_error(entry.kernels);
    return not_compiled;
  }
  const int status = reinterpret_cast<int (*)(Args...)>(function)(args...);
  if (status != ok) set_last_error(entry.last_error.load(std::memory_order_relaxed)());
  return status;
}

}  // namespace gw
