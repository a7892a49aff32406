// Large buffers on huge pages: random row reads cost half as many page-table misses there.
#include <malloc.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "graphweft/abi.h"

namespace {
constexpr size_t huge_page = size_t{1} << 21;
}

extern "C" {

// `bytes` (a multiple of 2 MiB) of zeroed memory aligned to 2 MiB, huge pages where the kernel grants them. *out: null,
// or where it should begin if nothing is there; then where it does.
GW_API int gw_pages_map(int64_t bytes, void** out) {
  return gw::guarded([&] {
    gw::require(bytes > 0 && bytes % int64_t(huge_page) == 0, "gw_pages_map: size is not a multiple of 2 MiB");
    constexpr int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (*out != nullptr && reinterpret_cast<uintptr_t>(*out) % huge_page == 0) {
      void* const found = mmap(*out, size_t(bytes), PROT_READ | PROT_WRITE, how, -1, 0);
      if (found == *out) {
        madvise(found, size_t(bytes), MADV_HUGEPAGE);
        return;
      }
      if (found != MAP_FAILED) munmap(found, size_t(bytes));
    }
    const size_t span = size_t(bytes) + huge_page;
    void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, how, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<uintptr_t>(raw);
    // The last place that fits: the system maps downwards, so it ends where the mapping before begins, and both are
    // one.
    const uintptr_t aligned = (start + huge_page) & ~(uintptr_t(huge_page) - 1);
    munmap(raw, aligned - start);
    const size_t tail = start + span - (aligned + size_t(bytes));
    if (tail > 0) munmap(reinterpret_cast<void*>(aligned + size_t(bytes)), tail);
    madvise(reinterpret_cast<void*>(aligned), size_t(bytes), MADV_HUGEPAGE);
    *out = reinterpret_cast<void*>(aligned);
  });
}

// Free memory of the C library's own heap goes back to the system, where that library can do so.
GW_API int gw_heap_trim(void) {
  return gw::guarded([] {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
  });
}

GW_API int gw_pages_unmap(void* pages, int64_t bytes) {
  return gw::guarded([&] { munmap(pages, size_t(bytes)); });
}
}
