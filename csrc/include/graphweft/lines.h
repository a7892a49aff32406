// Cache lines of rows: fetched before they are read, written past the cache where they would not stay in it.
#pragma once

#include <cstdint>
#include <cstring>

#include "graphweft/simd.h"

namespace gw {

constexpr int64_t line_bytes = 64;
constexpr int64_t streamed_from = int64_t{8} << 20;  // bytes of output: what is smaller may be read again from cache

// Asks for the lines that a row touches: Level 3 into the first cache, 2 into the second.
template <int Level>
GW_INLINE void fetch_row(const char* from, int64_t bytes) {
  const char* const end = from + bytes;
  for (from -= reinterpret_cast<uintptr_t>(from) % line_bytes; from < end; from += line_bytes)
    __builtin_prefetch(from, 0, Level);
}

// How many rows of so many bytes ahead of their use they are asked for into the second cache: some 24 KB are on their
// way then.
constexpr int64_t rows_ahead(int64_t bytes) { return bytes <= 256 ? 96 : bytes >= 3072 ? 8 : (24 << 10) / bytes; }

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

// Whether rows of `bytes` each, `total` in all, go past the cache: shorter ones would go there word by word.
inline bool streams_rows(int64_t total, int64_t bytes) { return total >= streamed_from && bytes >= line_bytes; }

// Before another thread reads what this one streamed.
inline void finish_streams() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

}  // namespace gw
