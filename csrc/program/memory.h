// Memory of a program: one arena for all buffers, and a pool that serves what kernels ask for on the way.
#pragma once

#include <cstdint>
#include <vector>

namespace program {

// Numbers that kernels read.
template <class T>
using Numbers = std::vector<T>;

// One stretch of zeroed memory on huge pages, given back at the end.
class Arena {
 public:
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  template <class T>
  [[nodiscard]] T* at(int64_t offset) const {
    return reinterpret_cast<T*>(start_ + offset);
  }

 private:
  char* start_ = nullptr;
  int64_t bytes_;
};

// From here on memory that `delete` gets back is kept for the next `new` of its size, and there is as much of it as so
// many threads want at once: after the first, an epoch asks the system for none.
void keep_freed_memory(int for_threads);
// The same for so many threads more; negative: for so many less.
void keep_more(int threads);

}  // namespace program
