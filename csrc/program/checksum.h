// The checksum of ZIP archives (CRC-32), sixty-four bytes at a time where the processor multiplies polynomials.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace program {

#if defined(__x86_64__)
namespace detail {

__attribute__((target("pclmul,sse2"))) inline __m128i folded(__m128i sum, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// Bytes whose number is a multiple of 64: what lies before is moved on by multiplying it by a power of x, modulo the
// polynomial of the checksum, and added; 16 bytes with the same checksum are left, which zlib finishes. Source: Gopal
// et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel, 2009.
__attribute__((target("pclmul,sse2"))) inline uint32_t checksum_of_blocks(uint32_t before, const unsigned char* at,
                                                                          size_t count) {
  const auto load = [](const unsigned char* from) __attribute__((target("pclmul,sse2"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  // x^(512 + 32) and x^(512 - 32), then x^(128 + 32) and x^(128 - 32), bits in reverse.
  const __m128i by_four = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_one = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  __m128i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = load(at + 16 * i);
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(int(~before)));
  for (size_t next = 64; next < count; next += 64)
    for (int i = 0; i < 4; ++i) sums[i] = folded(sums[i], by_four, load(at + next + 16 * i));
  for (int i = 1; i < 4; ++i) sums[i] = folded(sums[i - 1], by_one, sums[i]);
  unsigned char left[16];
  std::memcpy(left, &sums[3], sizeof left);
  return uint32_t(crc32(0xFFFFFFFFu, left, sizeof left));
}

}  // namespace detail
#endif

// Of bytes whose checksum is `before` and `count` bytes behind them.
inline uint32_t checksum(uint32_t before, const unsigned char* at, size_t count) {
#if defined(__x86_64__)
  if (const size_t blocks = count / 64 * 64; blocks > 0 && __builtin_cpu_supports("pclmul"))
    return uint32_t(crc32_z(detail::checksum_of_blocks(before, at, blocks), at + blocks, count - blocks));
#endif
  return uint32_t(crc32_z(before, at, count));
}

}  // namespace program
