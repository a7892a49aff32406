#include "memory.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "kernels.h"

namespace program {

namespace {

int64_t whole_pages(size_t bytes) {
  constexpr int64_t huge_page = int64_t{1} << 21;
  return (int64_t(bytes) + huge_page - 1) / huge_page * huge_page;
}

}  // namespace

void* map_pages(size_t bytes) {
  void* start = nullptr;
  if (bytes > size_t{1} << 62 || gw_pages_map(whole_pages(bytes), &start) != 0) throw std::bad_alloc();
  return start;
}

void unmap_pages(void* memory, size_t bytes) noexcept { gw_pages_unmap(memory, whole_pages(bytes)); }

Arena::Arena(int64_t bytes) : bytes_(bytes) {
  if (bytes_ > 0) start_ = static_cast<char*>(map_pages(size_t(bytes_)));
}

Arena::~Arena() {
  if (start_) unmap_pages(start_, size_t(bytes_));
}

}  // namespace program

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(PROGRAM_PLAIN_NEW)

void program::keep_freed_memory(int) {}
void program::keep_more(int) {}

#else

namespace {

// A block's first bytes tell its size class; freed blocks of a class are chained through them.
struct header {
  header* next;
  int size_class, taker;
};
constexpr size_t usual_alignment = 64;
constexpr int size_classes = 64, most_threads = 1024;
constexpr int large = 20;  // size classes from here on are not multiplied by the number of threads

// Blocks of one size class. A thread that has never held so many at once makes room for all threads to do the same,
// so that it does not matter later which of them happen to work at the same time.
struct pool {
  header* free = nullptr;
  int total = 0, most = 0;  // blocks in all; the most that one thread has held at once
};

std::atomic<int> threads{0};  // that blocks are kept for; 0: none are kept
std::atomic_flag busy = ATOMIC_FLAG_INIT;
pool pools[size_classes];
int in_use[most_threads][size_classes];  // by the thread that took them
std::atomic<int> seen{0};

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

header* allocate(size_t front, size_t room, int size_class) {
  auto* made = static_cast<header*>(std::aligned_alloc(front, front + room));
  if (!made) throw std::bad_alloc();
  made->size_class = size_class;
  return made;
}

header* take_kept(int size_class, int count) {
  thread_local const int me = seen++ % most_threads;
  const held lock;
  pool& blocks = pools[size_class];
  const int mine = ++in_use[me][size_class];
  if (mine > blocks.most) blocks.most = mine;
  while (!blocks.free || (size_class < large && blocks.total < blocks.most * count)) {
    header* made = allocate(usual_alignment, size_t{1} << size_class, size_class);
    made->next = blocks.free;
    blocks.free = made;
    ++blocks.total;
  }
  header* found = blocks.free;
  blocks.free = found->next;
  found->taker = me;
  return found;
}

void* take(size_t bytes, size_t alignment) {
  const size_t front = alignment < usual_alignment ? usual_alignment : alignment;
  const int count = threads.load(std::memory_order_relaxed);
  const bool is_kept = front == usual_alignment && count > 0;
  header* found =
      is_kept ? take_kept(size_class_of(bytes), count) : allocate(front, (bytes + front - 1) / front * front, -1);
  return reinterpret_cast<char*>(found) + front;
}

void give(void* memory, size_t alignment) noexcept {
  if (!memory) return;
  const size_t front = alignment < usual_alignment ? usual_alignment : alignment;
  auto* block = reinterpret_cast<header*>(static_cast<char*>(memory) - front);
  if (block->size_class < 0) return std::free(block);
  const held lock;
  --in_use[block->taker][block->size_class];
  block->next = pools[block->size_class].free;
  pools[block->size_class].free = block;
}

}  // namespace

void program::keep_freed_memory(int for_threads) { threads = for_threads; }
void program::keep_more(int more) { threads += more; }

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
