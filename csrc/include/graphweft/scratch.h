// Scratch memory of edge size: uninitialised, huge pages where the kernel
// grants them, returned to the system at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "graphweft/abi.h"

namespace gw {

template <class T>
class scratch {
 public:
  explicit scratch(int64_t count) {
    if (count <= 0) return;
    size_t bytes = size_t(checked_mul(count, int64_t(sizeof(T))));
    const size_t align = bytes < huge ? 64 : huge;
    bytes = (bytes + align - 1) / align * align;
    data_ = static_cast<T*>(std::aligned_alloc(align, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    if (align == huge) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  }
  ~scratch() { std::free(data_); }
  scratch(scratch&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  scratch& operator=(scratch&&) = delete;

  [[nodiscard]] T* data() const noexcept { return data_; }
  T& operator[](int64_t i) const noexcept { return data_[i]; }

 private:
  static constexpr size_t huge = size_t{1} << 21;
  T* data_ = nullptr;
};

// Scratch memory that grows and keeps its contents.
template <class T>
class grown {
 public:
  void reserve(int64_t count, int64_t kept) {
    if (count <= capacity_) return;
    const int64_t wanted = std::max(count, capacity_ + capacity_ / 2);
    auto larger = std::make_unique<scratch<T>>(wanted);
    if (kept > 0) std::copy(data(), data() + kept, larger->data());
    memory_ = std::move(larger);
    capacity_ = wanted;
  }
  [[nodiscard]] T* data() const { return memory_ ? memory_->data() : nullptr; }
  T& operator[](int64_t i) const { return (*memory_)[i]; }

 private:
  std::unique_ptr<scratch<T>> memory_;
  int64_t capacity_ = 0;
};

}  // namespace gw
