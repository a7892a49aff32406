// Float matrices rounded to bfloat16 (nearest, ties to even, as torch does) and laid out for products: two numbers that
// follow each other in the inner dimension are one 32-bit word, the first in its low half.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "graphweft/element.h"
#include "graphweft/panels.h"

namespace gw {

// Sixteen lanes at every level: a panel of columns, a tile's row, a cache line.
typedef float half_sums __attribute__((vector_size(64)));
typedef uint32_t half_words __attribute__((vector_size(64)));
typedef uint16_t half_numbers __attribute__((vector_size(32)));
inline constexpr int half_panel = 16;

struct free_words {
  void operator()(uint32_t* p) const noexcept { ::operator delete[](p, std::align_val_t{64}); }
};
using word_buffer = std::unique_ptr<uint32_t[], free_words>;

// `count` words on a cache line boundary, which are written before they are read.
inline word_buffer claim_words(int64_t count) {
  const size_t bytes = size_t(count > 0 ? count : 1) * sizeof(uint32_t);
  return word_buffer(static_cast<uint32_t*>(::operator new[](bytes, std::align_val_t{64})));
}

// The same, of zeros.
inline word_buffer make_words(int64_t count) {
  word_buffer made = claim_words(count);
  std::memset(made.get(), 0, size_t(count > 0 ? count : 1) * sizeof(uint32_t));
  return made;
}

constexpr int64_t padded_to(int64_t count, int64_t whole) { return (count + whole - 1) / whole * whole; }

// Floats in the upper halves' form: the upper 16 bits of every lane are its bfloat16. A NaN stays one.
GW_INLINE half_words round_upper(half_sums v) {
  const half_words b = half_words(v);
  return v == v ? b + 0x7fffu + ((b >> 16) & 1u) : b | 0x400000u;
}

#if defined(__AVX512F__)
GW_INLINE __mmask16 first_lanes(int64_t count) { return __mmask16((1u << count) - 1u); }
#endif

// The first `count` floats of p, the rest zero; all zero where p is null.
GW_INLINE half_sums load_lanes(const float* p, int64_t count) {
  half_sums v{};
  if (!p) return v;
  if (count >= half_panel)
    std::memcpy(&v, p, sizeof v);
  else
#if defined(__AVX512F__)
    v = half_sums(_mm512_maskz_loadu_ps(first_lanes(count), p));  // what is put together by parts waits for its stores
#else
    std::memcpy(&v, p, size_t(count) * sizeof(float));
#endif
  return v;
}

// How floats become bfloat16: by the processor's instructions, which take numbers below 1.2e-38 as zero as its products
// do, or by integers.
enum class half_form : bool { integers, instructions };

#if defined(__AVX512F__)
// Numbers of `low`, then those of `high`, in bfloat16.
GW_INLINE __m512i round_both(__m512 low, __m512 high) {
  // As text: the functions around are compiled for all processors of the level. Volatile: otherwise a compiler may move
  // the instruction in front of the branch that asks whether this processor has it.
  __m512i both;
  __asm__ volatile("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(low), "v"(high));
  return both;
}
#endif

// Numbers of `first` in the low halves and those of `second` in the high ones.
template <half_form Form>
GW_INLINE half_words pair_lanes(half_sums first, half_sums second) {
#if defined(__AVX512F__)
  if constexpr (Form == half_form::instructions) {
    alignas(64) static constexpr uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return half_words(_mm512_maskz_permutexvar_epi16(__mmask32(-1), _mm512_load_si512(order),
                                                     round_both(__m512(first), __m512(second))));
  }
#endif
  return (round_upper(first) >> 16) | (round_upper(second) & 0xffff0000u);
}

// The first `count` bfloat16 numbers of p, the rest zero; all zero where p is null.
GW_INLINE half_numbers load_lanes(const uint16_t* p, int64_t count) {
  half_numbers v{};
  if (!p) return v;
  if (count >= half_panel)
    std::memcpy(&v, p, sizeof v);
  else
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    v = half_numbers(_mm256_maskz_loadu_epi16(first_lanes(count), p));
#else
    std::memcpy(&v, p, size_t(count) * sizeof(uint16_t));
#endif
  return v;
}

// The same of numbers that are stored in bfloat16.
template <half_form>
GW_INLINE half_words pair_lanes(half_numbers first, half_numbers second) {
#if defined(__AVX512BW__)
  const auto all = __mmask16(-1);  // as in transpose_words
  const __m512i low = _mm512_maskz_cvtepu16_epi32(all, __m256i(first)),
                high = _mm512_maskz_cvtepu16_epi32(all, __m256i(second));
  return half_words(low) | half_words(high) << 16;  // GCC widens such a vector in halves
#else
  return __builtin_convertvector(first, half_words) | __builtin_convertvector(second, half_words) << 16;
#endif
}

template <half_form Form>
inline void round_row_by(const float* x, int64_t count, uint16_t* out) {
  int64_t at = 0;
#if defined(__AVX512F__)
  if constexpr (Form == half_form::instructions) {
    for (; at + 32 <= count; at += 32) {
      const half_sums low = load_lanes(x + at, half_panel), high = load_lanes(x + at + half_panel, half_panel);
      _mm512_storeu_si512(out + at, round_both(__m512(low), __m512(high)));
    }
    for (; at < count; at += half_panel) {
      const half_sums v = load_lanes(x + at, count - at);
      __m256i h;
      __asm__ volatile("vcvtneps2bf16 %1, %0" : "=v"(h) : "v"(v));
      std::memcpy(out + at, &h, size_t(std::min<int64_t>(half_panel, count - at)) * sizeof(uint16_t));
    }
    return;
  }
#endif
  for (; at < count; at += half_panel) {
    const half_numbers h = __builtin_convertvector(round_upper(load_lanes(x + at, count - at)) >> 16, half_numbers);
    std::memcpy(out + at, &h, size_t(std::min<int64_t>(half_panel, count - at)) * sizeof(uint16_t));
  }
}

// `count` floats of a row to bfloat16.
inline void round_row(half_form form, const float* x, int64_t count, uint16_t* out) {
  form == half_form::instructions ? round_row_by<half_form::instructions>(x, count, out)
                                  : round_row_by<half_form::integers>(x, count, out);
}

// V vectors of a row, `tail` lanes of the last one, to bfloat16: round_row of what is in registers.
template <int V, bool Full>
GW_INLINE void store_rounded([[maybe_unused]] half_form form, uint16_t* out, int tail, const f32::vec (&t)[V]) {
#if defined(__AVX512BW__)
  if (form == half_form::instructions) {
    for (int v = 0; v < V; v += 2) {
      const bool pair = v + 1 < V, whole = pair && (Full || v + 2 < V);
      const __m512i both = round_both(__m512(t[v]), __m512(t[pair ? v + 1 : v]));
      const uint32_t lanes = Full ? 16 : uint32_t(tail);
      uint16_t* const to = out + v * f32::lanes;
      if (whole)
        _mm512_storeu_si512(to, both);
      else
        _mm512_mask_storeu_epi16(to, __mmask32((uint64_t{1} << (pair ? 16 + lanes : lanes)) - 1), both);
    }
    return;
  }
#endif
  tile_io<bf16, V, Full>::store(out, tail, t);
}

// out[j][i] = in[i][j] for 16 x 16 words; `ld` words between rows of out.
inline void transpose_words(const half_words (&in)[16], uint32_t* out, int64_t ld) {
#if defined(__AVX512F__)
  const auto all = __mmask16(-1);  // forms without a mask warn of operands that nothing reads
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_maskz_unpacklo_epi32(all, __m512i(in[i]), __m512i(in[i + 1]));
    a[i + 1] = _mm512_maskz_unpackhi_epi32(all, __m512i(in[i]), __m512i(in[i + 1]));
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_maskz_unpacklo_epi64(__mmask8(-1), a[i], a[i + 2]);
    b[i + 1] = _mm512_maskz_unpackhi_epi64(__mmask8(-1), a[i], a[i + 2]);
    b[i + 2] = _mm512_maskz_unpacklo_epi64(__mmask8(-1), a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_maskz_unpackhi_epi64(__mmask8(-1), a[i + 1], a[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {  // column j of every quarter, rows in fours
    const __m512i low = _mm512_maskz_shuffle_i32x4(all, b[j], b[j + 4], 0x88),
                  lower = _mm512_maskz_shuffle_i32x4(all, b[j + 8], b[j + 12], 0x88);
    const __m512i high = _mm512_maskz_shuffle_i32x4(all, b[j], b[j + 4], 0xdd),
                  higher = _mm512_maskz_shuffle_i32x4(all, b[j + 8], b[j + 12], 0xdd);
    _mm512_storeu_si512(out + j * ld, _mm512_maskz_shuffle_i32x4(all, low, lower, 0x88));
    _mm512_storeu_si512(out + (j + 8) * ld, _mm512_maskz_shuffle_i32x4(all, low, lower, 0xdd));
    _mm512_storeu_si512(out + (j + 4) * ld, _mm512_maskz_shuffle_i32x4(all, high, higher, 0x88));
    _mm512_storeu_si512(out + (j + 12) * ld, _mm512_maskz_shuffle_i32x4(all, high, higher, 0xdd));
  }
#else
  uint32_t words[16][16];
  std::memcpy(words, in, sizeof words);
  for (int j = 0; j < 16; ++j)
    for (int i = 0; i < 16; ++i) out[j * ld + i] = words[i][j];
#endif
}

// W[k, m], or its transpose stored [m, k], into rows of pairs from `first` on: panel p of 16 columns begins at
// p * pairs * 16 and is [pairs][16].
inline void pack_half(half_form form, const float* w, int64_t ldw, bool transposed, int64_t k, int64_t m, int64_t first,
                      int64_t pairs, uint32_t* packed) {
  for (int64_t col = 0; col < m; col += half_panel) {
    const int64_t lanes = std::min<int64_t>(half_panel, m - col);
    uint32_t* out = packed + (col * pairs + first * half_panel);
    if (!transposed) {
      for (int64_t i = 0; i < k; i += 2, out += half_panel) {
        const float* row = w + i * ldw + col;
        const half_words both =
            pair_lanes<half_form::integers>(load_lanes(row, lanes), load_lanes(i + 1 < k ? row + ldw : nullptr, lanes));
        std::memcpy(out, &both, sizeof both);
      }
      continue;
    }
    for (int64_t i = 0; i < k; i += 2 * half_panel, out += half_panel * half_panel) {
      const int64_t count = std::min<int64_t>(2 * half_panel, k - i);
      half_words rows[16] = {};
      for (int64_t j = 0; j < lanes; ++j)
        round_row(form, w + (col + j) * ldw + i, count, reinterpret_cast<uint16_t*>(&rows[j]));
      uint32_t turned[16 * half_panel];
      transpose_words(rows, turned, half_panel);
      std::memcpy(out, turned, size_t((count + 1) / 2) * sizeof(half_words));
    }
  }
}

}  // namespace gw
