// Products whose results fill only a part of a vector, by moving numbers between the lanes of one: rows of heads that
// are halves or quarters of a vector, and rows times a matrix of few columns.
#pragma once

#include <cstdint>
#include <utility>

#include "graphweft/element.h"

namespace gw {

// `Per` heads of `channels` numbers each lie in one vector. A matrix per head, all [channels][channels], is stored as
// `channels` vectors a vector of the row: the k-th has row k of each matrix, side by side.
template <int Per>
struct small_heads {
  using vec = vf::vec;
  static constexpr int channels = vf::lanes / Per;
  using steps = std::make_integer_sequence<int, channels>;

  // Number k of every head, in all lanes of that head.
  template <int K>
  GW_INLINE static vec spread(vec x) {
    return spread<K>(x, std::make_integer_sequence<int, vf::lanes>{});
  }

  // y[i] = x[i] times the matrices at `w`, of n rows; both in rows of `ld` numbers.
  static void multiply(int64_t n, int64_t ld, const float* x, const float* w, float* y) {
    for (int64_t at = 0; at < ld; at += vf::lanes, w += channels * vf::lanes) {
      vec matrix[channels];
#pragma GCC unroll 16
      for (int k = 0; k < channels; ++k) matrix[k] = vf::load(w + k * vf::lanes);
      for (int64_t i = 0; i < n; ++i) vf::store(y + i * ld + at, product(vf::load(x + i * ld + at), matrix, steps{}));
    }
  }

  // w (+)= the sum over n rows of a[i]^T b[i], head by head.
  static void contract(int64_t n, int64_t ld, const float* a, const float* b, float* w, bool add) {
    for (int64_t at = 0; at < ld; at += vf::lanes, w += channels * vf::lanes) {
      vec sums[channels];
#pragma GCC unroll 16
      for (int k = 0; k < channels; ++k) sums[k] = add ? vf::load(w + k * vf::lanes) : vec{};
      for (int64_t i = 0; i < n; ++i) gather(vf::load(a + i * ld + at), vf::load(b + i * ld + at), sums, steps{});
#pragma GCC unroll 16
      for (int k = 0; k < channels; ++k) vf::store(w + k * vf::lanes, sums[k]);
    }
  }

  // Where element (head, row, column) lies.
  static int64_t place(int64_t head, int64_t row, int64_t column) {
    return (head / Per * channels + row) * vf::lanes + head % Per * channels + column;
  }

 private:
  template <int K, int... Lane>
  GW_INLINE static vec spread(vec x, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(x, x, (Lane / channels * channels + K)...);
  }
  template <int... K>
  GW_INLINE static vec product(vec x, const vec (&w)[channels], std::integer_sequence<int, K...>) {
    vec even{}, odd{};
    ((K % 2 ? void(odd += spread<K>(x) * w[K]) : void(even += spread<K>(x) * w[K])), ...);
    return even + odd;
  }
  template <int... K>
  GW_INLINE static void gather(vec a, vec b, vec (&sums)[channels], std::integer_sequence<int, K...>) {
    (void(sums[K] += spread<K>(a) * b), ...);
  }
};

// A matrix of at most `Columns` columns, a power of two: `groups` of its rows lie side by side in a vector.
template <int Columns>
struct few_columns {
  using vec = vf::vec;
  static constexpr int groups = vf::lanes / Columns;

  // Vectors of a matrix of `in` rows.
  static int64_t vectors(int64_t in) { return (in + vf::lanes - 1) / vf::lanes * Columns; }
  // Where element (row, column) lies.
  static int64_t place(int64_t row, int64_t column) {
    return row / groups * vf::lanes + row % groups * Columns + column;
  }

  // y[i] = x[i] W (+ bias), of n rows of `in` numbers, in rows of `out`.
  static void multiply(int64_t n, int64_t in, int64_t out, const float* x, const float* w, const float* bias,
                       float* y) {
    const vec start = bias ? vf::load_part(bias, int(out)) : vec{};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) rows<4>(in, out, x + i * in, w, start, y + i * out);
    for (; i < n; ++i) rows<1>(in, out, x + i * in, w, start, y + i * out);
  }

 private:
  template <int Rows>
  GW_INLINE static void rows(int64_t in, int64_t out, const float* x, const float* w, vec start, float* y) {
    vec sums[Rows] = {};
    int64_t at = 0;
    for (; at + vf::lanes <= in; at += vf::lanes, w += Columns * vf::lanes) {
      vec v[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) v[r] = vf::load(x + r * in + at);
      add<Rows>(v, w, sums, std::make_integer_sequence<int, Columns>{});
    }
    if (at < in) {
      vec v[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) v[r] = vf::load_part(x + r * in + at, int(in - at));
      add<Rows>(v, w, sums, std::make_integer_sequence<int, Columns>{});
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) vf::store_part(y + r * out, folded<vf::lanes / 2>(sums[r]) + start, int(out));
  }
  template <int Rows, int... Step>
  GW_INLINE static void add(const vec (&v)[Rows], const float* w, vec (&sums)[Rows],
                            std::integer_sequence<int, Step...>) {
    (add_step<Rows, Step>(v, vf::load(w + Step * vf::lanes), sums), ...);
  }
  template <int Rows, int Step>
  GW_INLINE static void add_step(const vec (&v)[Rows], vec w, vec (&sums)[Rows]) {
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) sums[r] += spread<Step>(v[r], std::make_integer_sequence<int, vf::lanes>{}) * w;
  }
  // Numbers [groups * Step, groups * (Step + 1)), each in the lanes of its group.
  template <int Step, int... Lane>
  GW_INLINE static vec spread(vec x, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(x, x, (groups * Step + Lane / Columns)...);
  }
  // The groups added up, halves onto each other.
  template <int Half>
  GW_INLINE static vec folded(vec x) {
    if constexpr (Half < Columns)
      return x;
    else
      return folded<Half / 2>(x + turned<Half>(x, std::make_integer_sequence<int, vf::lanes>{}));
  }
  template <int By, int... Lane>
  GW_INLINE static vec turned(vec x, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(x, x, ((Lane + By) % vf::lanes)...);
  }
};

}  // namespace gw
