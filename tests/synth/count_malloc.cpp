// Counts every block that the C library gives out while a program runs, and says how many at the end.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
std::atomic<long> blocks{0};

struct Report {
  ~Report() { std::fprintf(stderr, "blocks %ld\n", blocks.load()); }
} report;
}  // namespace

extern "C" {
void* malloc(size_t bytes) { return ++blocks, __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return ++blocks, __libc_calloc(count, bytes); }
void* realloc(void* memory, size_t bytes) { return ++blocks, __libc_realloc(memory, bytes); }
void* memalign(size_t alignment, size_t bytes) { return ++blocks, __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return ++blocks, __libc_memalign(alignment, bytes); }
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  ++blocks;
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : 12;
}
}
