// The one place that knows about threads: parallel loops over fixed chunks.
//
// Chunk boundaries depend on the data only, never on the number of threads, so that any reduction over chunks taken in
// chunk order gives the same bits on any machine with the same instruction set. OpenMP is shared with the host process
// (torch.set_num_threads governs both).
//
// GW_THREADS_STD puts std::thread in OpenMP's place: ThreadSanitizer sees every synchronisation of that, but not
// libgomp's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#if defined(GW_THREADS_STD)
#include <mutex>
#include <thread>
#else
#include <omp.h>
#endif

namespace gw {

// While this lives, numbers below the least normal one count as zero on its thread, in operands and in results. They
// appear when gradients vanish, and an operation with one of them takes as long as a hundred others. Within loops of
// this header alone, so neither torch nor the user's own code sees another mode.
class without_subnormals {
 public:
  without_subnormals() : former_(mode()) { set(former_ | zeroing); }
  ~without_subnormals() { set(former_); }
  without_subnormals(const without_subnormals&) = delete;
  without_subnormals& operator=(const without_subnormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint32_t zeroing = 0x8040u;  // of operands (DAZ) and results (FTZ)
  static uint32_t mode() { return __builtin_ia32_stmxcsr(); }
  static void set(uint32_t wanted) { __builtin_ia32_ldmxcsr(wanted); }
  uint32_t former_;
#elif defined(__aarch64__)
  static constexpr uint64_t zeroing = uint64_t{1} << 24;  // FZ
  static uint64_t mode() {
    uint64_t found;
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    return found;
  }
  static void set(uint64_t wanted) { __asm__ volatile("msr fpcr, %0" ::"r"(wanted)); }
  uint64_t former_;
#else
  static constexpr int zeroing = 0;
  static int mode() { return 0; }
  static void set(int) {}
  int former_;
#endif
};

#if defined(GW_THREADS_STD)

inline int& thread_width() {
  thread_local int width = 4;
  return width;
}
inline int num_threads() { return thread_width(); }

// How many threads the parallel loops of the calling thread use.
inline void set_num_threads(int count) { thread_width() = count; }

// Number of the thread that runs a body, in [0, num_threads()): for scratch memory, never for results.
inline int& thread_id_slot() {
  thread_local int id = 0;
  return id;
}
inline int thread_id() { return thread_id_slot(); }

template <class Body>
void parallel_chunks(int64_t num_chunks, Body&& body) {
  std::atomic<int64_t> next{0};
  std::mutex lock;
  std::exception_ptr failure = nullptr;
  const auto work = [&] {
    const without_subnormals mode;
    for (int64_t chunk = next++; chunk < num_chunks; chunk = next++) {
      try {
        body(chunk);
      } catch (...) {
        const std::lock_guard<std::mutex> held(lock);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  std::vector<std::thread> team;
  for (int i = 1; i < num_threads() && i < num_chunks; ++i)
    team.emplace_back([&work, i] {
      thread_id_slot() = i;
      work();
    });
  work();
  for (std::thread& member : team) member.join();
  if (failure) std::rethrow_exception(failure);
}

#else

inline int num_threads() { return omp_get_max_threads(); }

// How many threads the parallel loops of the calling thread use.
inline void set_num_threads(int count) { omp_set_num_threads(count); }

// Number of the thread that runs a body, in [0, num_threads()): for scratch memory, never for results.
inline int thread_id() { return omp_get_thread_num(); }

// The chunks [next, end) that one thread begins with; on a cache line of its own.
struct alignas(64) chunk_share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

// Calls body(chunk) for every chunk in [0, num_chunks). Each thread begins with its own contiguous share, the same in
// every loop of as many chunks, so that rows which one kernel wrote are in the cache of the core that reads them in the
// next; who is done takes chunks from the others' shares. The first exception is rethrown.
template <class Body>
void parallel_chunks(int64_t num_chunks, Body&& body) {
  const int64_t team = std::min<int64_t>(num_threads(), num_chunks);
  if (team <= 1 || omp_in_parallel()) {
    const without_subnormals mode;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) body(chunk);
    return;
  }
  std::vector<chunk_share> shares(static_cast<size_t>(team));
  for (int64_t t = 0; t < team; ++t) {
    shares[size_t(t)].next.store(num_chunks * t / team, std::memory_order_relaxed);
    shares[size_t(t)].end = num_chunks * (t + 1) / team;
  }
  std::exception_ptr failure = nullptr;
#pragma omp parallel
  {
    const without_subnormals mode;
    const int64_t me = omp_get_thread_num();
    for (int64_t t = 0; t < team; ++t) {
      chunk_share& share = shares[size_t((me + t) % team)];
      for (int64_t chunk; (chunk = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
        try {
          body(chunk);
        } catch (...) {
#pragma omp critical(gw_parallel_failure)
          if (!failure) failure = std::current_exception();
        }
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

#endif

// Calls body(begin, end) over [0, n) in chunks of `grain`.
template <class Body>
void parallel_ranges(int64_t n, int64_t grain, Body&& body) {
  const int64_t chunks = (n + grain - 1) / grain;
  parallel_chunks(chunks, [&](int64_t chunk) {
    const int64_t begin = chunk * grain;
    body(begin, begin + grain < n ? begin + grain : n);
  });
}

}  // namespace gw
