// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC 2011): a pure function of (key, counter), so a draw
// does not depend on threads, on order, or on what was drawn before.
#pragma once

#include <array>
#include <cstdint>

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

}  // namespace gw
