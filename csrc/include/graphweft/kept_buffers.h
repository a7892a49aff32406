// Large buffers of kernels, kept for the next call: a step neither maps pages anew nor takes more because nothing fits
// the gaps of the C library's heap, so what it takes is the most that its calls hold at once. Where GW_KEEPS_BUFFERS is
// not defined, as in programs, which have memory of their own, buffers are the C++ library's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "graphweft/abi.h"

#if defined(GW_KEEPS_BUFFERS) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#define GW_MAPS_BUFFERS
#include <sys/mman.h>
#endif

namespace gw {

#if defined(GW_MAPS_BUFFERS)
class buffer_store {
 public:
  static constexpr size_t least = size_t{1} << 17;

  static buffer_store& here() {
    static buffer_store store;
    return store;
  }

  // At least so many bytes, which becomes how many there are: the smallest free block that fits, or else a new one in
  // place of all that are free.
  void* take(size_t& bytes) {
    constexpr size_t step = size_t{1} << 16;
    const size_t wanted = (bytes + step - 1) / step * step;
    block* unfit = nullptr;
    {
      const std::lock_guard<std::mutex> lock(busy_);
      block** best = nullptr;
      for (block** at = &free_; *at; at = &(*at)->next)
        if ((*at)->bytes >= wanted && (!best || (*at)->bytes < (*best)->bytes)) best = at;
      if (best) {
        block* const found = *best;
        *best = found->next;
        bytes = found->bytes;
        return found;
      }
      std::swap(unfit, free_);
    }
    while (unfit) {
      block* const next = unfit->next;
      munmap(unfit, unfit->bytes);
      unfit = next;
    }
    void* const made = mmap(apart(wanted), wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) throw std::bad_alloc();
    bytes = wanted;
    return made;
  }

  void give(void* memory, size_t bytes) noexcept {
    block* const freed = new (memory) block{nullptr, bytes};
    const std::lock_guard<std::mutex> lock(busy_);
    freed->next = free_;
    free_ = freed;
  }

 private:
  struct block {
    block* next;
    size_t bytes;
  };

  // Where the next block should begin: far from the mappings of tensors, which merge where they touch.
  void* apart(size_t bytes) {
    if constexpr (sizeof(void*) < 8) return nullptr;
    return reinterpret_cast<void*>(next_.fetch_add(bytes, std::memory_order_relaxed));
  }

  std::mutex busy_;
  block* free_ = nullptr;
  std::atomic<uintptr_t> next_{uintptr_t(uint64_t{1} << 45)};
};
#endif

struct give_buffer {
  size_t kept = 0;  // bytes of a block of the store; 0: it is the C++ library's

  void operator()(float* p) const noexcept {
#if defined(GW_MAPS_BUFFERS)
    if (kept) return buffer_store::here().give(p, kept);
#endif
    ::operator delete[](p, std::align_val_t{64});
  }
};
using float_buffer = std::unique_ptr<float[], give_buffer>;

// `count` uninitialised floats on a cache line boundary.
inline float_buffer make_buffer(int64_t count) {
  size_t bytes = size_t(checked_mul(count > 0 ? count : 1, int64_t(sizeof(float))));
#if defined(GW_MAPS_BUFFERS)
  if (bytes >= buffer_store::least) {
    auto* const made = static_cast<float*>(buffer_store::here().take(bytes));
    return float_buffer(made, give_buffer{bytes});
  }
#endif
  return float_buffer(static_cast<float*>(::operator new[](bytes, std::align_val_t{64})));
}

}  // namespace gw
