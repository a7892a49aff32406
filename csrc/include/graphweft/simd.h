// Vectors as wide as the instruction set this translation unit is compiled for, written once with the compiler's vector
// extension. AVX-512: 16 floats, AVX2: 8, else 4.
#pragma once

#include <cstdint>
#include <cstring>

namespace gw {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

template <class T>
struct simd {
  static constexpr int lanes = vector_bytes / int(sizeof(T));
  typedef T vec __attribute__((vector_size(vector_bytes)));
  typedef T unaligned __attribute__((vector_size(vector_bytes), aligned(sizeof(T)), may_alias));

  static inline vec load(const T* p) { return *reinterpret_cast<const unaligned*>(p); }
  static inline void store(T* p, vec v) { *reinterpret_cast<unaligned*>(p) = v; }
  static inline vec splat(T v) { return vec{} + v; }
  // The first n lanes of p; the rest are zero and their memory is not touched.
  static inline vec load_part(const T* p, int n) {
    vec v{};
    std::memcpy(&v, p, sizeof(T) * size_t(n));
    return v;
  }
  static inline void store_part(T* p, vec v, int n) { std::memcpy(p, &v, sizeof(T) * size_t(n)); }
};

using vf = simd<float>;

}  // namespace gw
