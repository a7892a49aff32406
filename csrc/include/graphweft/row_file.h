// Rows of tables in files, read in many requests at a time and written where they are wanted.
//
// Threads take request after request: each reads into a buffer of its own and copies the wanted rows, as float, to
// their places. Small reads at random take most of their time waiting, so there are more threads than processors.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "graphweft/abi.h"

namespace gw {

enum class row_type : int32_t { float32 = 0, bfloat16 = 1, float16 = 2 };

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float widen_float16(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 1023u;
  if (exponent == 31) return float_of_bits(sign | 0x7F800000u | fraction << 13);
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * float(fraction) * 0x1p-24f;
  return float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

// Requests: bytes [begin, begin + room) of a file, of which `least` have to be there; its rows begin `skip` bytes in.
// Wanted rows of request r are row[rows[r]] to row[rows[r + 1]], counted from there, for the places beside them.
struct row_requests {
  int64_t count;
  const int32_t* file;   // [count] place in `handles`
  const int64_t* begin;  // [count]
  const int64_t* room;   // [count]
  const int64_t* least;  // [count]
  const int64_t* skip;   // [count]
  const int64_t* width;  // [count] columns
  const int64_t* rows;   // [count + 1]
  const int64_t* row;    // [rows[count]]
  const int64_t* place;  // [rows[count]]
};

// Files, and whether reads of each pass the system's cache; one that turns out not to have that is set to 0.
struct row_files {
  const int32_t* handles;
  int32_t* direct;
};

// What was read, and the first request that failed: its number, or -1; bytes that it got; errno, or 0 for an end of
// file that came too early.
struct row_outcome {
  int64_t requests = 0, bytes = 0, failed = -1, got = 0, error = 0;
};

class row_reader {
 public:
  row_reader(const row_requests& requests, const row_files& files, row_type type, float* table, int64_t columns)
      : requests_(requests), files_(files), type_(type), table_(table), columns_(columns) {}

  row_outcome run(int64_t threads, int64_t buffer_bytes) {
    threads = std::max<int64_t>(std::min(threads, requests_.count), 1);
    const int64_t each = (buffer_bytes + sector - 1) / sector * sector;
    // one block, which goes back to the system; heaps of threads would keep theirs
    const std::unique_ptr<void, decltype(&std::free)> held(
        std::aligned_alloc(size_t(sector), size_t(checked_mul(threads, std::max(each, sector)))), &std::free);
    if (held == nullptr) throw std::bad_alloc();
    auto* buffers = static_cast<char*>(held.get());
    std::vector<std::thread> running;
    for (int64_t t = 1; t < threads; ++t) running.emplace_back([this, buffers, each, t] { work(buffers + t * each); });
    work(buffers);
    for (std::thread& thread : running) thread.join();
    outcome_.requests = calls_.load(), outcome_.bytes = bytes_.load();
    return outcome_;
  }

 private:
  static constexpr int64_t sector = 4096;

  void work(char* buffer) {
    for (int64_t r; (r = next_.fetch_add(1)) < requests_.count;) {
      int64_t got = 0;
      const int error = read(r, buffer, got);
      if (error >= 0) return fail(r, got, error);
      take(r, buffer + requests_.skip[r]);
    }
  }

  // Fills the buffer; -1, or what went wrong.
  int read(int64_t r, char* buffer, int64_t& got) {
    const int handle = files_.handles[requests_.file[r]];
    int32_t* direct = files_.direct + requests_.file[r];
    while (got < requests_.least[r]) {
      const ssize_t more = pread(handle, buffer + got, size_t(requests_.room[r] - got), requests_.begin[r] + got);
      if (more < 0 && errno == EINTR) continue;
      if (more < 0 && errno == EINVAL && through_cache(handle, direct)) continue;
      if (more <= 0) return more < 0 ? errno : 0;
      got += more;
      calls_.fetch_add(1, std::memory_order_relaxed), bytes_.fetch_add(more, std::memory_order_relaxed);
      if (got < requests_.least[r] && got % sector != 0) through_cache(handle, direct);
    }
#ifdef POSIX_FADV_DONTNEED
    if (__atomic_load_n(direct, __ATOMIC_RELAXED) == 0)  // what is in our memory needs no second copy
      posix_fadvise(handle, requests_.begin[r] / sector * sector, (requests_.room[r] / sector + 2) * sector,
                    POSIX_FADV_DONTNEED);
#endif
    return -1;
  }

  // Ordinary reads of a file from now on; false if they were ordinary already.
  bool through_cache(int handle, int32_t* direct) {
    const std::lock_guard<std::mutex> turn(lock_);
    const bool was = __atomic_exchange_n(direct, 0, __ATOMIC_RELAXED) != 0;
#ifdef O_DIRECT
    const int flags = fcntl(handle, F_GETFL);
    if ((flags & O_DIRECT) != 0) return fcntl(handle, F_SETFL, flags & ~O_DIRECT) == 0;
#endif
    return was;
  }

  void fail(int64_t r, int64_t got, int error) {
    const std::lock_guard<std::mutex> turn(lock_);
    next_.store(requests_.count);
    if (outcome_.failed < 0 || r < outcome_.failed) outcome_.failed = r, outcome_.got = got, outcome_.error = error;
  }

  void take(int64_t r, const char* rows) {
    const int64_t width = requests_.width[r];
    for (int64_t i = requests_.rows[r]; i < requests_.rows[r + 1]; ++i) {
      float* to = table_ + requests_.place[i] * columns_;
      if (type_ == row_type::float32) {
        std::memcpy(to, rows + requests_.row[i] * width * 4, size_t(width) * 4);
      } else {
        const char* from = rows + requests_.row[i] * width * 2;
        for (int64_t c = 0; c < width; ++c) {
          uint16_t half;
          std::memcpy(&half, from + 2 * c, sizeof half);
          to[c] = type_ == row_type::bfloat16 ? float_of_bits(uint32_t(half) << 16) : widen_float16(half);
        }
      }
      std::fill(to + width, to + columns_, 0.0f);
    }
  }

  row_requests requests_;
  row_files files_;
  row_type type_;
  float* table_;
  int64_t columns_;
  std::atomic<int64_t> next_{0}, calls_{0}, bytes_{0};
  std::mutex lock_;
  row_outcome outcome_;
};

}  // namespace gw
