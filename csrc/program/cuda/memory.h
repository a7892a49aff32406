// Memory of a CUDA program: managed, so that the host fills what kernels read. It needs a device of compute capability
// 6 or later under Linux, where both sides may touch it at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace program {

// Managed bytes, zeroed; throws std::bad_alloc.
void* managed(size_t bytes);
void unmanaged(void* memory) noexcept;

template <class T>
struct Managed {
  using value_type = T;
  Managed() = default;
  template <class U>
  Managed(const Managed<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(managed(count * sizeof(T))); }
  void deallocate(T* memory, size_t) noexcept { unmanaged(memory); }
  bool operator==(const Managed&) const { return true; }
  bool operator!=(const Managed&) const { return false; }
};

// Numbers that kernels read.
template <class T>
using Numbers = std::vector<T, Managed<T>>;

// One stretch of zeroed memory, given back at the end.
class Arena {
 public:
  explicit Arena(int64_t bytes) : start_(static_cast<char*>(managed(size_t(bytes)))) {}
  ~Arena() { unmanaged(start_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  template <class T>
  [[nodiscard]] T* at(int64_t offset) const {
    return reinterpret_cast<T*>(start_ + offset);
  }

 private:
  char* const start_;
};

inline void keep_freed_memory(int) {}

}  // namespace program
