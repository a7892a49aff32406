// Memory of a program: one arena for all buffers, and a pool that serves what kernels ask for on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace program {

// Pages of zeros, huge ones where the system has them; throws std::bad_alloc.
void* map_pages(size_t bytes);
void unmap_pages(void* memory, size_t bytes) noexcept;

// Room for numbers that are written before they are read: it is not cleared, and much of it is on huge pages.
template <class T>
struct Fresh {
  using value_type = T;
  Fresh() = default;
  template <class U>
  Fresh(const Fresh<U>&) {}

  T* allocate(size_t count) {
    return static_cast<T*>(count < many ? ::operator new(count * sizeof(T)) : map_pages(count * sizeof(T)));
  }
  void deallocate(T* memory, size_t count) noexcept {
    count < many ? ::operator delete(memory) : unmap_pages(memory, count * sizeof(T));
  }
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Values>
  void construct(U* at, Values&&... values) {
    ::new (static_cast<void*>(at)) U(std::forward<Values>(values)...);
  }
  bool operator==(const Fresh&) const { return true; }
  bool operator!=(const Fresh&) const { return false; }

 private:
  static constexpr size_t many = (size_t{1} << 22) / sizeof(T);
};

// Numbers that kernels read; new ones are not zero unless they are said to be.
template <class T>
using Numbers = std::vector<T, Fresh<T>>;

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
