// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC 2011): a pure function of (key, counter), so a draw
// does not depend on threads, on order, or on what was drawn before.
#pragma once

#include <array>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace gw {

using u32x4 = std::array<uint32_t, 4>;

inline u32x4 philox4x32(u32x4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key1, uint32_t(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The block of four draws number `index` of stream `stream` under `seed`.
inline u32x4 random_block(uint64_t seed, uint64_t stream, uint64_t index) {
  return philox4x32({uint32_t(index), uint32_t(index >> 32), uint32_t(stream), uint32_t(stream >> 32)}, uint32_t(seed),
                    uint32_t(seed >> 32));
}

inline uint64_t random_u64(uint64_t seed, uint64_t stream, uint64_t index) {
  const u32x4 block = random_block(seed, stream, index);
  return (uint64_t(block[1]) << 32) | block[0];
}

// [0, 1) with 53 bits.
inline double to_unit(uint64_t bits) { return double(bits >> 11) * 0x1.0p-53; }

// An integer in [0, n), n > 0, by multiplication (bias below n / 2^64).
inline uint64_t to_below(uint64_t bits, uint64_t n) {
  return uint64_t((static_cast<unsigned __int128>(bits) * n) >> 64);
}

// A bijection on 64 bits whose output bits all depend on all input bits (the
// finaliser of splitmix64, Steele et al., OOPSLA 2014).
inline uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Eight 64-bit lanes that hold 32-bit values; the product of their low halves.
typedef uint64_t u64x8 __attribute__((vector_size(64)));

inline u64x8 multiply_low(u64x8 a, uint32_t b) {
#if defined(__AVX512F__)
  return u64x8(_mm512_maskz_mul_epu32(0xFF, __m512i(a), _mm512_set1_epi64(int64_t(b))));
#elif defined(__AVX2__)
  union {
    u64x8 whole;
    __m256i half[2];
  } t;
  t.whole = a;
  const __m256i factor = _mm256_set1_epi64x(int64_t(b));
  t.half[0] = _mm256_mul_epu32(t.half[0], factor);
  t.half[1] = _mm256_mul_epu32(t.half[1], factor);
  return t.whole;
#else
  return (a & 0xFFFFFFFFu) * uint64_t(b);
#endif
}

// Words 0, 1 (low) and 2, 3 (high) of eight Philox blocks of the stream.
inline void random_blocks(uint64_t seed, uint64_t stream, u64x8 block, u64x8& low, u64x8& high) {
  const u64x8 none{};
  u64x8 c0 = block, c1 = block >> 32, c2 = none + uint64_t(uint32_t(stream)), c3 = none + (stream >> 32);
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64x8 a = multiply_low(c0, 0xD2511F53u), b = multiply_low(c2, 0xCD9E8D57u);
    c0 = (b >> 32) ^ c1 ^ uint64_t(key0);  // the high halves may hold leftovers; nothing reads them
    c1 = b;
    c2 = (a >> 32) ^ c3 ^ uint64_t(key1);
    c3 = a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  low = (c0 & 0xFFFFFFFFu) | (c1 << 32);
  high = (c2 & 0xFFFFFFFFu) | (c3 << 32);
}

}  // namespace gw
