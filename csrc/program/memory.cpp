#include "memory.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "kernels.h"

namespace program {

namespace {
constexpr int64_t huge_page = int64_t{1} << 21;
}

Arena::Arena(int64_t bytes) : bytes_((bytes + huge_page - 1) / huge_page * huge_page) {
  if (bytes_ == 0) return;
  void* start = nullptr;
  check(gw_pages_map(bytes_, &start));
  start_ = static_cast<char*>(start);
}

Arena::~Arena() {
  if (start_) gw_pages_unmap(start_, bytes_);
}

}  // namespace program

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(PROGRAM_PLAIN_NEW)

void program::keep_freed_memory() {}

#else

namespace {

// A block's first bytes tell its size class; freed blocks of a class are chained through them.
struct header {
  header* next;
  int size_class;
};
constexpr size_t usual_alignment = 64;
constexpr int size_classes = 64;

std::atomic<bool> keeps{false};
std::atomic_flag busy = ATOMIC_FLAG_INIT;
header* kept[size_classes];

class held {
 public:
  held() {
    while (busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~held() { busy.clear(std::memory_order_release); }
  held(const held&) = delete;
  held& operator=(const held&) = delete;
};

int size_class_of(size_t bytes) {
  int found = 6;
  while ((size_t{1} << found) < bytes) ++found;
  return found;
}

void* take(size_t bytes, size_t alignment) {
  const size_t front = alignment < usual_alignment ? usual_alignment : alignment;
  const bool is_usual = front == usual_alignment;
  const int size_class = is_usual && keeps.load(std::memory_order_relaxed) ? size_class_of(bytes) : -1;
  header* found = nullptr;
  if (size_class >= 0) {
    const held lock;
    found = kept[size_class];
    if (found) kept[size_class] = found->next;
  }
  if (!found) {
    const size_t room = size_class >= 0 ? size_t{1} << size_class : (bytes + front - 1) / front * front;
    found = static_cast<header*>(std::aligned_alloc(front, front + room));
    if (!found) throw std::bad_alloc();
    found->size_class = size_class;
  }
  return reinterpret_cast<char*>(found) + front;
}

void give(void* memory, size_t alignment) noexcept {
  if (!memory) return;
  const size_t front = alignment < usual_alignment ? usual_alignment : alignment;
  auto* block = reinterpret_cast<header*>(static_cast<char*>(memory) - front);
  if (block->size_class < 0) return std::free(block);
  const held lock;
  block->next = kept[block->size_class];
  kept[block->size_class] = block;
}

}  // namespace

void program::keep_freed_memory() { keeps = true; }

void* operator new(size_t bytes) { return take(bytes, usual_alignment); }
void* operator new[](size_t bytes) { return take(bytes, usual_alignment); }
void* operator new(size_t bytes, std::align_val_t alignment) { return take(bytes, size_t(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return take(bytes, size_t(alignment)); }
void operator delete(void* memory) noexcept { give(memory, usual_alignment); }
void operator delete[](void* memory) noexcept { give(memory, usual_alignment); }
void operator delete(void* memory, size_t) noexcept { give(memory, usual_alignment); }
void operator delete[](void* memory, size_t) noexcept { give(memory, usual_alignment); }
void operator delete(void* memory, std::align_val_t alignment) noexcept { give(memory, size_t(alignment)); }
void operator delete[](void* memory, std::align_val_t alignment) noexcept { give(memory, size_t(alignment)); }
void operator delete(void* memory, size_t, std::align_val_t alignment) noexcept { give(memory, size_t(alignment)); }
void operator delete[](void* memory, size_t, std::align_val_t alignment) noexcept { give(memory, size_t(alignment)); }

#endif
