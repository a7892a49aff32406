// A fingerprint of memory: 128 bits that differ, but for a chance of about 2^-64, when a byte differs.
//
// Stripes of 64 bytes are mixed into eight lanes of 64 bits by 32 x 32 bit products, the way XXH3 (Collet, 2019) does,
// so that a core reads at the speed of its memory. Chunks of fixed size are hashed in parallel and joined in order: the
// same value for any number of threads. It finds changes; it is no protection against somebody who forges them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "graphweft/parallel.h"
#include "graphweft/simd.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gw {

struct fingerprint {
  uint64_t low, high;
};

namespace detail {

constexpr int64_t stripe_bytes = 64;
constexpr int64_t fingerprint_chunk = int64_t{1} << 18;
constexpr int lanes_of_stripe = 8;

constexpr uint64_t lane_keys[lanes_of_stripe] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu,
                                                 0xd6e8feb86659fd93u, 0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu,
                                                 0x8ebc6af09c88c6e3u, 0x589965cc75374cc3u};

inline uint64_t scrambled(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 29;
  x *= 0x9e3779b97f4a7c15u;
  return x ^ (x >> 32);
}

using word_vector = simd<uint64_t>::vec;
// Memory of any alignment, read a vector at a time: a copy in smaller pieces would be waited for. It is read through a
// pointer to bytes: g++ 12 takes an element of an array of such vectors for an aligned one.
typedef uint64_t any_words __attribute__((vector_size(vector_bytes), aligned(1), may_alias));
constexpr int vectors_of_stripe = int(stripe_bytes) / vector_bytes;

// Every other pair of lanes swapped, so that a word also counts where its product may be zero.
template <int... Lane>
GW_INLINE word_vector swapped(word_vector x, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(x, x, (Lane ^ 1)...);
}
GW_INLINE word_vector swapped(word_vector x) {
  return swapped(x, std::make_integer_sequence<int, simd<uint64_t>::lanes>{});
}

// Low times high half of every word. The vector extension would multiply whole words, three times the work.
GW_INLINE word_vector halves_multiplied(word_vector x) {
#if defined(__AVX512VL__)
  return word_vector(_mm512_maskz_mul_epu32(0xFF, __m512i(x), __m512i(x >> 32)));
#elif defined(__AVX2__)
  return word_vector(_mm256_mul_epu32(__m256i(x), __m256i(x >> 32)));
#elif defined(__SSE2__)
  return word_vector(_mm_mul_epu32(__m128i(x), __m128i(x >> 32)));
#else
  return (x & simd<uint64_t>::splat(0xffffffffu)) * (x >> 32);
#endif
}

// One stripe into the lanes; `step` tells equal stripes at different places apart.
GW_INLINE void mix_stripe(word_vector* lanes, const word_vector* keys, const void* stripe, uint64_t step) {
  const auto* bytes = static_cast<const unsigned char*>(stripe);
  word_vector words[vectors_of_stripe];
  for (int v = 0; v < vectors_of_stripe; ++v) {
    words[v] = *reinterpret_cast<const any_words*>(bytes + v * vector_bytes);
    const word_vector keyed = words[v] ^ (keys[v] + simd<uint64_t>::splat(step));
    lanes[v] += halves_multiplied(keyed) + swapped(words[v]);
  }
}

inline fingerprint fingerprint_of_chunk(const unsigned char* bytes, int64_t size) {
  constexpr int width = simd<uint64_t>::lanes;
  word_vector lanes[vectors_of_stripe], keys[vectors_of_stripe];
  for (int v = 0; v < vectors_of_stripe; ++v) lanes[v] = keys[v] = simd<uint64_t>::load(lane_keys + v * width);
  const int64_t stripes = size / stripe_bytes;
  for (int64_t s = 0; s < stripes; ++s) {
    mix_stripe(lanes, keys, bytes + s * stripe_bytes, uint64_t(s) * 0x9e3779b97f4a7c15u);
    if (s % 16 == 15)  // products and sums alone would let the high bits of a lane rest
      for (int v = 0; v < vectors_of_stripe; ++v)
        lanes[v] = (lanes[v] ^ (lanes[v] >> 47) ^ keys[v]) * simd<uint64_t>::splat(0x9e3779b1u);
  }
  const int64_t left = size - stripes * stripe_bytes;
  uint64_t words[lanes_of_stripe] = {};
  if (left > 0) {
    std::memcpy(words, bytes + stripes * stripe_bytes, size_t(left));
    mix_stripe(lanes, keys, words, ~uint64_t(left));
  }
  for (int v = 0; v < vectors_of_stripe; ++v) simd<uint64_t>::store(words + v * width, lanes[v]);
  fingerprint made{uint64_t(size), ~uint64_t(size)};
  for (int i = 0; i < lanes_of_stripe; ++i) {
    made.low = scrambled(made.low ^ words[i]);
    made.high = scrambled(made.high + (words[i] ^ lane_keys[lanes_of_stripe - 1 - i]));
  }
  return made;
}

}  // namespace detail

// The fingerprint of `size` bytes.
inline fingerprint fingerprint_of(const void* memory, int64_t size) {
  const auto* bytes = static_cast<const unsigned char*>(memory);
  const int64_t chunks = (size + detail::fingerprint_chunk - 1) / detail::fingerprint_chunk;
  if (chunks <= 1) return detail::fingerprint_of_chunk(bytes, size);
  std::vector<fingerprint> found(static_cast<size_t>(chunks));
  parallel_ranges(size, detail::fingerprint_chunk, [&](int64_t begin, int64_t end) {
    found[size_t(begin / detail::fingerprint_chunk)] = detail::fingerprint_of_chunk(bytes + begin, end - begin);
  });
  fingerprint made{uint64_t(size), uint64_t(chunks)};
  for (const fingerprint& part : found) {
    made.low = detail::scrambled(made.low ^ part.low);
    made.high = detail::scrambled(made.high + part.high);
  }
  return made;
}

}  // namespace gw
