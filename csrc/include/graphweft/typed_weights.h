// Matrices by type, packed for the product that their shape asks for, and sums of products by type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/gemm.h"
#include "graphweft/gemm_tn.h"
#include "graphweft/parallel.h"
#include "graphweft/typed_rows.h"
#include "graphweft/typed_spread.h"

namespace gw {

// Calls visit(small_heads<n>{}) where a vector holds n of `heads` square matrices' rows; false where none does.
template <class Visit>
bool with_small_heads(int64_t heads, int64_t in, int64_t out, Visit&& visit) {
  const auto fits = [&](int64_t per) { return in == out && in >= 2 && in * per == vf::lanes && heads % per == 0; };
  if constexpr (vf::lanes >= 4)
    if (fits(2)) return visit(small_heads<2>{}), true;
  if constexpr (vf::lanes >= 8)
    if (fits(4)) return visit(small_heads<4>{}), true;
  return false;
}

// Calls visit(few_columns<n>{}) where the columns of one matrix fill at most half a vector; false where they do not.
template <class Visit>
bool with_few_columns(int64_t heads, int64_t out, Visit&& visit) {
  if (heads != 1 || 2 * out > vf::lanes) return false;
  if (out <= 2) return visit(few_columns<2>{}), true;
  if constexpr (vf::lanes >= 8)
    if (out <= 4) return visit(few_columns<4>{}), true;
  if constexpr (vf::lanes >= 16) return visit(few_columns<8>{}), true;
  return false;
}

// Packed matrices of every type and head.
class packed_weights {
 public:
  packed_weights(const gw_typed_weight& w, float* room) : w_(w), panels_(cut_panels(w.out)), room_(room) {
    per_type_ = checked_mul(w.heads, checked_mul(w.in, padded_width(panels_)));
    if (with_small_heads(w.heads, w.in, w.out, [](auto) {})) per_type_ = w.heads * w.in * w.out;
    with_few_columns(w.heads, w.out, [&](auto form) { per_type_ = checked_mul(form.vectors(w.in), vf::lanes); });
  }

  [[nodiscard]] int64_t per_type() const { return per_type_; }
  [[nodiscard]] int64_t in_width() const { return w_.heads * w_.in; }
  [[nodiscard]] int64_t out_width() const { return w_.heads * w_.out; }
  [[nodiscard]] const std::vector<panel>& panels() const { return panels_; }
  [[nodiscard]] const float* at(int64_t type) const { return room_ + type * per_type_; }

  void pack(int64_t type) const { pack_at(type, room_ + type * per_type_); }
  void pack_at(int64_t type, float* to) const {
    const float* from = w_.values + type * w_.heads * w_.in * w_.out;
    const auto element = [&](int64_t h, int64_t i, int64_t j) {
      return from[h * w_.in * w_.out + (w_.transposed ? j * w_.in + i : i * w_.out + j)];
    };
    const auto scatter = [&](auto&& place) {
      for (int64_t h = 0; h < w_.heads; ++h)
        for (int64_t i = 0; i < w_.in; ++i)
          for (int64_t j = 0; j < w_.out; ++j) to[place(h, i, j)] = element(h, i, j);
    };
    if (with_small_heads(w_.heads, w_.in, w_.out, [&](auto form) { scatter(form.place); })) return;
    if (with_few_columns(w_.heads, w_.out, [&](auto form) {
          std::fill_n(to, per_type_, 0.0f);
          scatter([&](int64_t, int64_t i, int64_t j) { return form.place(i, j); });
        }))
      return;
    const int64_t ld = w_.transposed ? w_.in : w_.out, each = per_type_ / w_.heads;
    for (int64_t h = 0; h < w_.heads; ++h)
      gemm_pack(panels_, w_.in, from + h * w_.in * w_.out, ld, w_.transposed != 0, to + h * each);
  }

  // How often a product of n rows looks for what to fetch.
  [[nodiscard]] int64_t steps(int64_t n) const {
    return w_.heads * int64_t(panels_.size()) * (n / gemm_tile_rows(panels_[0].vectors) + 1) *
           (w_.in / row_queue::stride + 1);
  }

  // y[i] = x[i] W (+ bias, of one head), head by head, for n rows; `matrices`: a packed type. `ahead`: what to fetch
  // meanwhile.
  void multiply(const float* matrices, int64_t n, const float* x, float* y, const float* bias = nullptr,
                row_queue* ahead = nullptr) const {
    if (with_small_heads(w_.heads, w_.in, w_.out, [&](auto form) { form.multiply(n, in_width(), x, matrices, y); }))
      return;
    if (with_few_columns(w_.heads, w_.out, [&](auto form) { form.multiply(n, w_.in, w_.out, x, matrices, bias, y); }))
      return;
    gw_epilogue_f32 stages{};
    stages.bias = bias;
    const int64_t each = per_type_ / w_.heads;
    for (int64_t h = 0; h < w_.heads; ++h) {
      const gemm_shape shape{n,          w_.in,          w_.out,      x + h * w_.in,
                             in_width(), y + h * w_.out, out_width(), bias ? &stages : nullptr};
      for (const panel& columns : panels_)
        gemm_run({&shape, matrices + h * each + w_.in * columns.offset, columns, shape.x, shape.ldx, 0, n, 0, w_.in,
                  nullptr, true, true, nullptr, ahead});
    }
  }

 private:
  gw_typed_weight w_;
  std::vector<panel> panels_;
  float* room_;
  int64_t per_type_;
};

// Sums of products A^T B over the rows of each type, head by head.
class typed_contraction {
 public:
  // Vectors go along the wider of the two rows where the other is shorter than a vector.
  typed_contraction(const gw_typed_rows& rows, int64_t heads, int64_t in, int64_t out, float* room)
      : rows_(rows),
        heads_(heads),
        in_(in),
        out_(out),
        swapped_(heads == 1 && gemm_tn_cost(out, in) < gemm_tn_cost(in, out)),
        panels_(cut_panels(swapped_ ? in : out)),
        width_(padded_width(panels_)),
        room_(room) {
    per_unit_ = checked_mul(heads_, checked_mul(swapped_ ? out_ : in_, width_));
    if (with_small_heads(heads, in, out, [](auto) {})) per_unit_ = heads * in * out;
  }

  [[nodiscard]] int64_t per_unit() const { return per_unit_; }

  // fetch(chunk, add) calls add(a, b, meanwhile) with the rows of a chunk: pointers to rows of heads * in and heads *
  // out numbers, with a vector's room behind the last. meanwhile(share, of) is called as often as the work is cut.
  template <class Fetch>
  void run(float* result, Fetch&& fetch) const {
    parallel_chunks(rows_.num_units, [&](int64_t unit) {
      float* sums = room_ + unit * per_unit_;
      const int64_t first = rows_.unit_chunk[unit];
      for (int64_t c = first; c < rows_.unit_chunk[unit + 1]; ++c)
        fetch(c, [&](const float* a, const float* b, auto&& meanwhile) {
          add(rows_.chunk_begin[c + 1] - rows_.chunk_begin[c], a, b, sums, c > first, meanwhile);
        });
    });
    parallel_chunks(rows_.num_types, [&](int64_t type) { finish(type, result + type * heads_ * in_ * out_); });
  }

 private:
  template <class Meanwhile>
  void add(int64_t n, const float* a, const float* b, float* sums, bool more, Meanwhile&& meanwhile) const {
    if (with_small_heads(heads_, in_, out_, [&](auto form) { form.contract(n, heads_ * in_, a, b, sums, more); }))
      return meanwhile(0, 1);
    if (swapped_) std::swap(a, b);
    const int64_t short_side = swapped_ ? out_ : in_, long_side = swapped_ ? in_ : out_;
    constexpr int64_t tall = 12;  // rows of a result between two looks at what else there is to do
    const int64_t steps = (short_side + tall - 1) / tall;
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t step = 0; step < steps; ++step) {
        meanwhile(h * steps + step, heads_ * steps);
        const int64_t at = step * tall, p = std::min(tall, short_side - at);
        for (const panel& columns : panels_)
          gemm_tn_run(columns, {a + h * short_side + at, heads_ * short_side, b + h * long_side + columns.first,
                                heads_ * long_side, n, p, sums + (h * short_side + at) * width_ + columns.offset,
                                width_, !more, false});
      }
  }

  // The units of a type, added in order.
  void finish(int64_t type, float* out) const {
    const int64_t begin = rows_.type_unit[type], end = rows_.type_unit[type + 1];
    if (begin == end) return void(std::fill_n(out, heads_ * in_ * out_, 0.0f));
    float* total = room_ + begin * per_unit_;
    for (int64_t unit = begin + 1; unit < end; ++unit)
      for (int64_t i = 0; i < per_unit_; ++i) total[i] += room_[unit * per_unit_ + i];
    const auto gather = [&](auto&& place) {
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t i = 0; i < in_; ++i)
          for (int64_t j = 0; j < out_; ++j) out[(h * in_ + i) * out_ + j] = total[place(h, i, j)];
    };
    if (with_small_heads(heads_, in_, out_, [&](auto form) { gather(form.place); })) return;
    if (swapped_) return gather([&](int64_t, int64_t i, int64_t j) { return j * width_ + padded_place(i); });
    for (const panel& columns : panels_)
      for (int64_t row = 0; row < heads_ * in_; ++row)
        std::copy_n(total + row * width_ + columns.offset, columns.width, out + row * out_ + columns.first);
  }

  [[nodiscard]] int64_t padded_place(int64_t column) const {
    for (const panel& columns : panels_)
      if (column < columns.first + columns.width) return columns.offset + column - columns.first;
    return 0;
  }

  gw_typed_rows rows_;
  int64_t heads_, in_, out_;
  bool swapped_;
  std::vector<panel> panels_;
  int64_t width_, per_unit_;
  float* room_;
};

}  // namespace gw
