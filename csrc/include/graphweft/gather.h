// Rows of a table, by id, at the speed of memory: rows to come are fetched ahead in two steps, and what is written
// bypasses the cache where that pays. A core has few fetches into its first cache under way at once, and more than
// twice as many into its second: far rows are fetched into that one, near ones from there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gw {

constexpr int64_t line_bytes = 64;
constexpr int64_t streamed_from = int64_t{8} << 20;  // bytes of output: what is smaller may be read again from cache

// Copies `bytes`, a multiple of 4, past the cache. Neighbouring rows fill the lines that this one leaves half written.
inline void stream_row(const char* from, int64_t bytes, char* to) {
#if defined(__AVX2__)
  int64_t at = 0;
  const auto word = [&] {
    int32_t value;
    std::memcpy(&value, from + at, sizeof value);
    _mm_stream_si32(reinterpret_cast<int*>(to + at), value);
    at += 4;
  };
  while (at < bytes && reinterpret_cast<uintptr_t>(to + at) % line_bytes != 0) word();
#if defined(__AVX512F__)
  for (; at + 64 <= bytes; at += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
#else
  for (; at + 32 <= bytes; at += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
#endif
  while (at < bytes) word();
#else
  std::memcpy(to, from, size_t(bytes));
#endif
}

template <int Level>
void fetch_row(const char* from, int64_t bytes) {
  const char* const end = from + bytes;
  for (from -= reinterpret_cast<uintptr_t>(from) % line_bytes; from < end; from += line_bytes)
    __builtin_prefetch(from, 0, Level);
}

inline void gather_rows(const char* table, int64_t rows, int64_t stride, int64_t bytes, const int64_t* ids, int64_t n,
                        char* out) {
  const int64_t total = checked_mul(n, bytes);
  const int64_t width = std::max<int64_t>(bytes, 1);
  const int64_t far = std::clamp<int64_t>(6144 / width, 4, 64), near = std::clamp<int64_t>(1024 / width, 1, 8);
  const int64_t grain = std::max<int64_t>(64, (int64_t{1} << 18) / width);
  const bool stream =
      total >= streamed_from && bytes >= line_bytes && bytes % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 4 == 0;
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + far < end && uint64_t(ids[i + far]) < uint64_t(rows)) fetch_row<2>(table + ids[i + far] * stride, bytes);
      if (i + near < end && uint64_t(ids[i + near]) < uint64_t(rows))
        fetch_row<3>(table + ids[i + near] * stride, bytes);
      if (uint64_t(ids[i]) >= uint64_t(rows))
        throw error(out_of_range, "gather_rows: expected ids in [0, " + std::to_string(rows) + "), got " +
                                      std::to_string(ids[i]) + " at position " + std::to_string(i));
      const char* const from = table + ids[i] * stride;
      if (stream)
        stream_row(from, bytes, out + i * bytes);
      else if (bytes > 0)
        std::memcpy(out + i * bytes, from, size_t(bytes));
    }
#if defined(__AVX2__)
    _mm_sfence();
#endif
  });
}

}  // namespace gw
