// Rows made of heads: H heads of C channels each, head h in columns [h C, (h + 1) C). A tile is a few heads, or a part
// of one wide head, in registers. A vector lies in one head, so a weight per head is a splat, or, where heads are
// halves or quarters of a vector, it holds whole heads, and weights are permuted into place.
//
// Numbers per edge and head lie flat, [edge][head], for the edges of one block: element-wise work on them takes whole
// vectors whatever the number of heads.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "graphweft/abi.h"
#include "graphweft/element.h"
#include "graphweft/head_shapes.h"

namespace gw {

// Vectors of one tile: what leaves room for two sets of sums and an operand.
inline constexpr int head_tile_vectors = vector_bytes == 64 ? 8 : 4;

// `Count` heads from h0 on, `Per` vectors each from channel c0 on; `tail` lanes of each head's last vector are used.
// Or, with `Pack` > 1, `Count` vectors of `Pack` whole heads each.
template <int Count, int Per, int Pack, bool Full>
struct head_tile {
  using vec = vf::vec;
  static constexpr int heads = Count * Pack, vectors = Count * Per, per_head = Per, sums = Count;
  static constexpr int reach = Per * vf::lanes;  // columns of one head, or of one vector of packed heads
  static_assert(Pack == 1 || (Per == 1 && Full), "packed heads fill their vectors");
  int64_t channels;
  int64_t h0, c0;
  int tail;

  [[nodiscard]] int64_t first() const { return h0 * channels + c0; }
  // Columns from one head, or vector of packed heads, to the next.
  [[nodiscard]] int64_t step() const { return Pack > 1 ? vf::lanes : channels; }
  // Bytes from the first to the last element.
  [[nodiscard]] int64_t bytes() const {
    if (Pack > 1) return Count * vf::lanes * int64_t(sizeof(float));
    return ((Count - 1) * channels + (Per - 1) * vf::lanes + (Full ? vf::lanes : tail)) * int64_t(sizeof(float));
  }

  // visit(k, p) for every vector k of the row whose first column in this tile is at p.
  template <class Visit>
  GW_INLINE void each(const float* p, Visit&& visit) const {
    each(p, step(), visit);
  }
  // The same where heads are `step` apart; 0: all heads read the same channels.
  template <class Visit>
  GW_INLINE void each(const float* p, int64_t step, Visit&& visit) const {
#pragma GCC unroll 8
    for (int t = 0; t < Count; ++t) {
#pragma GCC unroll 8
      for (int v = 0; v < Per; ++v) visit(t * Per + v, p + v * vf::lanes);
      p += step;
    }
  }
  // Vector k, at p.
  GW_INLINE vec load_vector(int k, const float* p) const {
    return Full || k % Per < Per - 1 ? vf::load(p) : vf::load_part(p, tail);
  }
  GW_INLINE void load(const float* p, vec (&x)[vectors]) const {
    each(p, [&](int k, const float* at) GW_INLINE_LAMBDA { x[k] = load_vector(k, at); });
  }
  GW_INLINE void store(float* p, const vec (&x)[vectors]) const {
    each(p, [&](int k, const float* at) GW_INLINE_LAMBDA {
      auto* to = const_cast<float*>(at);
      if (Full || k % Per < Per - 1)
        vf::store(to, x[k]);
      else
        vf::store_part(to, x[k], tail);
    });
  }

  // A number per head, to be spread over the lanes of vector k.
  class weights {
   public:
    GW_INLINE explicit weights(const float* w) : w_(w) {
      if constexpr (Pack > 1) packed_ = vf::load_part(w, heads);
    }
    GW_INLINE vec operator[](int k) const {
      if constexpr (Pack == 1)
        return vec{} + w_[k / Per];
      else
        return pick(k, std::make_integer_sequence<int, Count>{});
    }

   private:
    template <int... K>
    GW_INLINE vec pick(int k, std::integer_sequence<int, K...>) const {
      vec out{};
      ((k == K ? void(out = spread<K>(std::make_integer_sequence<int, vf::lanes>{})) : void()), ...);
      return out;
    }
    template <int K, int... Lane>
    GW_INLINE vec spread(std::integer_sequence<int, Lane...>) const {
      return __builtin_shufflevector(packed_, packed_, (K * Pack + Lane * Pack / vf::lanes)...);
    }
    const float* w_;
    vec packed_;
  };

  // Adds vector k's product to the sum of its head.
  static GW_INLINE void add_product(vec (&t)[sums], int k, vec a, vec b) { t[k / Per] = vf::fused(a, b, t[k / Per]); }

  // out[t] = (or +=) the sum of head t's lanes, halves folded onto each other: a fixed order.
  GW_INLINE static void sum(vec (&t)[sums], float* out, bool add) {
    vec total = fold<Count, vf::lanes / Pack>(t);
    if (add) total += vf::load_part(out, heads);
    vf::store_part(out, total, heads);
  }

 private:
  // The sums of `N` vectors that hold blocks of `Block` lanes each, side by side in the first lanes.
  template <int N, int Block>
  GW_INLINE static vec fold(vec* t) {
    if constexpr (Block == 1) {
      return t[0];
    } else {
      constexpr int half = N > 1 ? N / 2 : 1;
#pragma GCC unroll 8
      for (int k = 0; k < half; ++k)
        t[k] =
            halve<Block>(t[N > 1 ? 2 * k : 0], t[N > 1 ? 2 * k + 1 : 0], std::make_integer_sequence<int, vf::lanes>{});
      return fold<half, Block / 2>(t);
    }
  }
  // Blocks of a, then of b, half as long: the upper half of each added to the lower one.
  template <int Block, int... Lane>
  GW_INLINE static vec halve(vec a, vec b, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(a, b, low<Block>(Lane)...) +
           __builtin_shufflevector(a, b, (low<Block>(Lane) + Block / 2)...);
  }
  template <int Block>
  static constexpr int low(int lane) {
    constexpr int lanes = vf::lanes;
    const int inside = lane % (lanes / 2);
    return (lane < lanes / 2 ? 0 : lanes) + inside / (Block / 2) * Block + inside % (Block / 2);
  }
};

// Whether `for_each_head_tile` cuts such heads into tiles of this kind.
constexpr bool is_tile_of(const head_shape& shape, int count, int per, int pack, bool full, bool few) {
  constexpr int64_t most = head_tile_vectors, lanes = vf::lanes;
  int64_t largest = pack > 1 ? std::min<int64_t>(4, lanes / pack) : 1;  // count of a tile
  while (pack == 1 && 2 * largest * per <= most) largest *= 2;
  // Whether tiles of this count occur among those of `n` heads, or vectors of packed ones.
  if (few || (pack == 1 && per > 1 && !full)) largest = 1;
  const auto occurs = [&](int64_t n) {
    return count == largest ? n >= count : count < largest && n % (2 * count) >= count;
  };
  const bool packs = shape.channels * 2 == lanes || shape.channels * 4 == lanes;
  const int64_t packed = packs ? lanes / shape.channels : 1;
  if (pack > 1) return packed == pack && occurs(shape.heads / pack);
  const int64_t rest = shape.channels % (most * lanes), last = (rest + lanes - 1) / lanes;
  const bool whole = shape.channels >= most * lanes && per == most && full != few;
  const bool part = rest > 0 && per == last && full == (!few && (per & (per - 1)) == 0 && rest % lanes == 0);
  return (whole || part) &&
         (occurs(packs ? shape.heads % packed : shape.heads) || (shape.shared && occurs(shape.heads)));
}

// Whether tiles of this kind are compiled: those of the heads in head_shapes.h.
constexpr bool is_head_tile(int count, int per, int pack, bool full, bool few) {
  for (const head_shape& shape : head_shapes)
    if (shape.heads == 0 || is_tile_of(shape, count, per, pack, full, few)) return true;
  return false;
}

// Calls visit(tile) for tiles that cover all heads; a vector is part of one head unless `pack`. With `Few`, a tile has
// the heads of one vector: the same bits from less code.
template <bool Few = few_shapes, class Visit>
void for_each_head_tile(int64_t heads, int64_t channels, Visit&& visit, bool pack = true) {
  constexpr int most = head_tile_vectors, lanes = vf::lanes;
  int64_t h = 0;
  const auto packed = [&](auto per_vector) {
    constexpr int n = decltype(per_vector)::value;
    if constexpr (n <= lanes) {
      if (!pack || channels * n != lanes) return;
      if constexpr (4 * n <= lanes && !Few && is_head_tile(4, 1, n, true, Few))
        for (; h + 4 * n <= heads; h += 4 * n) visit(head_tile<4, 1, n, true>{channels, h, 0, lanes});
      if constexpr (2 * n <= lanes && !Few && is_head_tile(2, 1, n, true, Few))
        for (; h + 2 * n <= heads; h += 2 * n) visit(head_tile<2, 1, n, true>{channels, h, 0, lanes});
      if constexpr (is_head_tile(1, 1, n, true, Few))
        for (; h + n <= heads; h += n) visit(head_tile<1, 1, n, true>{channels, h, 0, lanes});
    }
  };
  packed(std::integral_constant<int, 2>{});
  packed(std::integral_constant<int, 4>{});
  const int64_t rest_of_heads = h;
  const auto with = [&](auto count, auto per, int64_t h0, int64_t c0, int tail) {
    constexpr int n = decltype(count)::value, v = decltype(per)::value;
    // rare widths take a whole vector as a tail: less code
    if constexpr (!Few && (v & (v - 1)) == 0 && is_head_tile(n, v, 1, true, Few))
      if (tail == lanes) return visit(head_tile<n, v, 1, true>{channels, h0, c0, tail});
    if constexpr ((n == 1 || v == 1) && is_head_tile(n, v, 1, false, Few))
      visit(head_tile<n, v, 1, false>{channels, h0, c0, tail});
    else
      throw error(bad_argument, "heads: expected those of the model that this was compiled for");
  };
  // As many heads at a time as fit, `per` vectors each; one head of several vectors that end in a part of one: less
  // code for rare widths.
  const auto narrow = [&](auto per, int64_t c0, int tail) {
    constexpr int v = decltype(per)::value;
    [[maybe_unused]] const bool joins = v == 1 || (tail == lanes && (v & (v - 1)) == 0);
    h = rest_of_heads;
    if constexpr (8 * v <= most && !Few)
      for (; joins && h + 8 <= heads; h += 8) with(std::integral_constant<int, 8>{}, per, h, c0, tail);
    if constexpr (4 * v <= most && !Few)
      for (; joins && h + 4 <= heads; h += 4) with(std::integral_constant<int, 4>{}, per, h, c0, tail);
    if constexpr (2 * v <= most && !Few)
      for (; joins && h + 2 <= heads; h += 2) with(std::integral_constant<int, 2>{}, per, h, c0, tail);
    for (; h < heads; ++h) with(std::integral_constant<int, 1>{}, per, h, c0, tail);
  };
  for (int64_t c0 = 0; c0 < channels; c0 += most * lanes) {
    const int64_t rest = std::min<int64_t>(channels - c0, most * lanes);
    const int per = int((rest + lanes - 1) / lanes), tail = int(rest - (per - 1) * lanes);
    const auto choose = [&](auto v) {
      if constexpr (decltype(v)::value <= most)
        if (per == decltype(v)::value) narrow(v, c0, tail);
    };
    choose(std::integral_constant<int, 1>{});
    choose(std::integral_constant<int, 2>{});
    choose(std::integral_constant<int, 3>{});
    choose(std::integral_constant<int, 4>{});
    choose(std::integral_constant<int, 5>{});
    choose(std::integral_constant<int, 6>{});
    choose(std::integral_constant<int, 7>{});
    choose(std::integral_constant<int, 8>{});
  }
}

// The first n lanes at p, n a number or an integral constant; nothing beyond them is touched.
GW_INLINE vf::vec some(const float* p, int n) { return vf::load_part(p, n); }
GW_INLINE void put(float* p, vf::vec v, int n) { vf::store_part(p, v, n); }

typedef float half_vector __attribute__((vector_size(vector_bytes / 2)));
template <int... Lane>
GW_INLINE vf::vec widened(half_vector v, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(v, half_vector{}, Lane...);
}

template <int N>
GW_INLINE vf::vec some(const float* p, std::integral_constant<int, N>) {
  if constexpr (N == vf::lanes) {
    return vf::load(p);
  } else if constexpr (2 * N == vf::lanes) {
    half_vector v;
    std::memcpy(&v, p, sizeof(v));
    return widened(v, std::make_integer_sequence<int, vf::lanes>{});
  } else {
    static_assert(N == 1, "whole vectors, halves and single lanes");
    vf::vec v{};
    v[0] = *p;
    return v;
  }
}
template <int N>
GW_INLINE void put(float* p, vf::vec v, std::integral_constant<int, N>) {
  std::memcpy(p, &v, N * sizeof(float));
}

// body(h, n) over the heads of an edge or row, n lanes at a time; n is constant where that is common.
template <class Body>
GW_INLINE void for_heads(int64_t heads, Body&& body) {
  constexpr int lanes = vf::lanes;
  if (heads == 1) return body(int64_t{0}, std::integral_constant<int, 1>{});
  int64_t h = 0;
  for (; h + lanes <= heads; h += lanes) body(h, std::integral_constant<int, lanes>{});
  if (h + lanes / 2 == heads)
    body(h, std::integral_constant<int, lanes / 2>{});
  else if (h < heads)
    body(h, int(heads - h));
}

// body(i) for whole vectors of [0, count) and a little beyond: flat arrays have room for that.
template <class Body>
GW_INLINE void for_flat(int64_t count, Body&& body) {
  for (int64_t i = 0; i < count; i += vf::lanes) body(i);
}

}  // namespace gw
