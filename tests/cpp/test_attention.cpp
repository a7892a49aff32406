// Attention and margins over in-edges: results in double, gradients by differences of the loss, hubs and empty rows.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <type_traits>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/attention.h"
#include "graphweft/entry_points.h"

namespace {

struct operands {
  int32_t score, shared;
  int64_t heads, channels;
  std::vector<float> value, src, dst, vector;

  operands(const data::graph& g, int32_t kind, int64_t h, int64_t c, bool share = false)
      : score(kind), shared(share), heads(h), channels(c) {
    value = data::floats(g.num_cols * (shared ? 1 : h) * c, 11);
    if (kind == gw_score_add) src = data::floats(g.num_cols * h, 12), dst = data::floats(g.num_rows * h, 13);
    if (kind == gw_score_add2) dst = data::floats(g.num_rows * h * c, 13), vector = data::floats(h * c, 14);
    if (kind == gw_score_dot) src = data::floats(g.num_cols * h * c, 12), dst = data::floats(g.num_rows * h * c, 13);
  }

  [[nodiscard]] gw_attention_f32 view() {
    return {score,
            shared,
            heads,
            channels,
            0.2,
            0.5,
            0.0,
            0,
            0,
            data::pointer(value),
            data::pointer(src),
            data::pointer(dst),
            data::pointer(vector)};
  }

  [[nodiscard]] double scored(int64_t i, int64_t j, int64_t h) const {
    const auto leaky = [](double t) { return t > 0 ? t : 0.2 * t; };
    if (score == gw_score_add) return leaky(double(src[size_t(j * heads + h)]) + dst[size_t(i * heads + h)]);
    double sum = 0.0;
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = [&](int64_t row) { return size_t((row * heads + h) * channels + c); };
      if (score == gw_score_add2)
        sum += leaky(double(value[at(j)]) + dst[at(i)]) * vector[at(0)];
      else
        sum += 0.5 * double(src[at(j)]) * dst[at(i)];
    }
    return sum;
  }
};

// The definition, row by row.
std::vector<double> attended(const data::graph& g, const operands& o) {
  const int64_t width = o.heads * o.channels;
  std::vector<double> out(size_t(g.num_rows * width), 0.0);
  for (int64_t i = 0; i < g.num_rows; ++i)
    for (int64_t h = 0; h < o.heads; ++h) {
      const int64_t begin = g.indptr[size_t(i)], end = g.indptr[size_t(i + 1)];
      double top = -INFINITY, total = 0.0;
      for (int64_t p = begin; p < end; ++p) top = std::max(top, o.scored(i, g.indices[size_t(p)], h));
      for (int64_t p = begin; p < end; ++p) total += std::exp(o.scored(i, g.indices[size_t(p)], h) - top);
      for (int64_t p = begin; p < end; ++p) {
        const int64_t j = g.indices[size_t(p)];
        const double weight = std::exp(o.scored(i, j, h) - top) / total;
        const int64_t row = o.shared ? j : j * o.heads + h;
        for (int64_t c = 0; c < o.channels; ++c)
          out[size_t(i * width + h * o.channels + c)] += weight * o.value[size_t(row * o.channels + c)];
      }
    }
  return out;
}

double loss(const data::graph& g, const operands& o, const std::vector<float>& slope) {
  const std::vector<double> out = attended(g, o);
  double sum = 0.0;
  for (size_t k = 0; k < out.size(); ++k) sum += out[k] * slope[k];
  return sum;
}

// Some elements of a gradient against differences of the loss.
void compare_slopes(const data::graph& g, operands& o, std::vector<float>& leaf, const std::vector<float>& grad,
                    const std::vector<float>& slope) {
  const auto size = int64_t(leaf.size());
  for (int64_t k = 0; k < size; k += std::max<int64_t>(1, size / 7)) {
    const float before = leaf[size_t(k)], step = 1.0f / 4096.0f;  // small: no leaky unit changes sides within it
    leaf[size_t(k)] = before + step;
    const double up = loss(g, o, slope), above = leaf[size_t(k)];
    leaf[size_t(k)] = before - step;
    const double down = loss(g, o, slope), below = leaf[size_t(k)];
    leaf[size_t(k)] = before;
    CHECK(check::close(grad[size_t(k)], (up - down) / (above - below), 2e-2));
  }
}

void compare(data::graph& g, int32_t score, int64_t heads, int64_t channels, bool shared = false) {
  operands o(g, score, heads, channels, shared);
  const int64_t width = heads * channels;
  const gw_adjacency adj = g.view();
  const gw_attention_f32 view = o.view();
  std::vector<float> out(size_t(g.num_rows * width), -7.0f);
  std::vector<float> stats(size_t(g.num_rows * (score == gw_score_add ? 3 * heads + width : 2 * heads)));
  CHECK(gw_attend_f32(&adj, &view, data::pointer(out), data::pointer(stats)) == 0);
  const std::vector<double> want = attended(g, o);
  for (size_t k = 0; k < want.size(); ++k) CHECK(check::close(out[k], want[k], 1e-4));
  if (g.num_edges == 0) return;

  std::vector<int64_t> indptr(size_t(g.num_cols + 1)), ids(size_t(g.num_edges));
  std::vector<int32_t> indices(size_t(g.num_edges), 0), turned(size_t(g.num_edges), 0);
  CHECK(gw_csr_transpose(&adj, 0, nullptr, indptr.data(), indices.data(), turned.data()) == 0);
  const gw_adjacency transposed{g.num_cols, g.num_rows, g.num_edges, indptr.data(), indices.data(), turned.data(), 0};
  const std::vector<float> slope = data::floats(g.num_rows * width, 15);
  std::vector<float> value(o.value.size()), src(o.src.size()), dst(o.dst.size()), vector(o.vector.size());
  std::vector<float> room(size_t(g.num_rows * 4 * heads));
  const gw_attention_grad_f32 grad{value.data(), data::pointer(src), data::pointer(dst), data::pointer(vector)};
  CHECK(gw_attend_grad_f32(&adj, &transposed, &view, stats.data(), out.data(), slope.data(), &grad, room.data()) == 0);
  compare_slopes(g, o, o.value, value, slope);
  if (!src.empty()) compare_slopes(g, o, o.src, src, slope);
  if (!dst.empty()) compare_slopes(g, o, o.dst, dst, slope);
  if (!vector.empty()) compare_slopes(g, o, o.vector, vector, slope);
}

}  // namespace

TEST(attention_is_its_definition) {
  data::graph small(12, 9, 40, 1), hub(30, 40, 700, 2, true), none(5, 4, 0, 1);
  for (const int32_t score : {int32_t(gw_score_add), int32_t(gw_score_add2), int32_t(gw_score_dot)}) {
    for (const auto& [heads, channels] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {8, 8}, {3, 5}, {2, 33}}) {
      compare(small, score, heads, channels);
      compare(none, score, heads, channels);
    }
    compare(hub, score, 4, 8);
  }
}

// What a program compiles for its heads alone is what they are cut into.
template <bool Few>
void tiles_are_those_that_are_told(const gw::head_shape& shape) {
  std::set<std::array<int, 4>> visited, told;
  for (const bool pack : {true, false})
    if (pack || shape.shared)
      gw::for_each_head_tile<Few>(
          shape.heads, shape.channels,
          [&](auto tile) {
            using T = decltype(tile);
            const int n = T::heads / T::sums;
            const bool full = std::is_same_v<T, gw::head_tile<T::sums, T::per_head, n, true>>;
            visited.insert({T::sums, T::per_head, n, int(full)});
          },
          pack);
  for (const int count : {1, 2, 4, 8})
    for (int per = 1; per <= gw::head_tile_vectors; ++per)
      for (const int pack : {1, 2, 4})
        for (const bool full : {false, true})
          if ((pack == 1 || (per == 1 && full)) && gw::is_tile_of(shape, count, per, pack, full, Few))
            told.insert({count, per, pack, int(full)});
  CHECK(visited == told);
}

TEST(tiles_of_heads_are_those_that_are_told) {
  for (int64_t heads = 1; heads <= 19; ++heads)
    for (const int64_t channels :
         {1, 2, 3, 4, 5, 7, 8, 9, 16, 24, 31, 32, 33, 40, 48, 64, 65, 80, 96, 112, 128, 129, 200, 256})
      for (const bool shared : {false, true}) {
        tiles_are_those_that_are_told<false>({heads, channels, shared});
        tiles_are_those_that_are_told<true>({heads, channels, shared});
      }
}

TEST(heads_may_share_their_values) {
  data::graph small(12, 9, 40, 1), hub(30, 40, 700, 2, true), none(5, 4, 0, 1);
  for (const auto& [heads, channels] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 5}, {8, 8}, {3, 20}, {8, 64}, {2, 100}, {5, 150}})
    for (data::graph* g : {&small, &hub, &none}) compare(*g, gw_score_add, heads, channels, true);
}

TEST(attention_refuses_what_it_cannot_read) {
  data::graph g(4, 4, 9, 1);
  operands o(g, gw_score_add, 2, 3);
  const gw_adjacency adj = g.view();
  std::vector<float> out(size_t(4 * 6));
  gw_attention_f32 wrong = o.view();
  wrong.heads = 0;
  CHECK(gw_attend_f32(&adj, &wrong, out.data(), nullptr) != 0);
  wrong = o.view();
  wrong.channels = INT64_MAX / 2;
  CHECK(gw_attend_f32(&adj, &wrong, out.data(), nullptr) != 0);
  operands dots(g, gw_score_dot, 2, 3);
  wrong = dots.view();
  wrong.shared = 1;
  CHECK(gw_attend_f32(&adj, &wrong, out.data(), nullptr) != 0);
  CHECK(gw_attend_f32(nullptr, &wrong, out.data(), nullptr) != 0);
  CHECK(gw_edge_margins_f32(&adj, o.src.data(), 0, out.data()) != 0);
  CHECK(gw_edge_margins_f32(&adj, nullptr, 1, out.data()) != 0);
}

TEST(margins_are_sums_over_pairs) {
  for (const bool skew : {false, true}) {
    data::graph g(40, 20, 900, 3, skew);
    const gw_adjacency adj = g.view();
    const int64_t heads = 3;
    std::vector<float> scores = data::floats(g.num_edges * heads, 4), dout = data::floats(g.num_edges * heads, 5);
    for (float& s : scores) s = std::round(s * 8.0f) / 8.0f;  // many equal ones
    std::vector<float> out(scores.size(), -7.0f), grad(scores.size(), -7.0f), closed(scores.size(), -7.0f);
    CHECK(gw_edge_margins_f32(&adj, scores.data(), heads, out.data()) == 0);
    CHECK(gw_edge_margins_grad_f32(&adj, scores.data(), dout.data(), heads, 0, grad.data()) == 0);
    CHECK(gw_edge_margins_grad_f32(&adj, scores.data(), dout.data(), heads, 1, closed.data()) == 0);
    for (int64_t i = 0; i < g.num_rows; ++i)
      for (int64_t p = g.indptr[size_t(i)]; p < g.indptr[size_t(i + 1)]; ++p)
        for (int64_t h = 0; h < heads; ++h) {
          const auto at = size_t(p * heads + h);
          double sum = 0.0, open_slope = 0.0, closed_slope = 0.0;
          for (int64_t q = g.indptr[size_t(i)]; q < g.indptr[size_t(i + 1)]; ++q) {
            const auto other = size_t(q * heads + h);
            const double gap = double(scores[at]) - scores[other];
            sum += std::max(0.0, gap);
            open_slope += gap > 0 ? dout[at] : gap < 0 ? -dout[other] : 0.0;
            closed_slope += (gap >= 0 ? dout[at] : 0.0) - (gap <= 0 ? dout[other] : 0.0);
          }
          CHECK(check::close(out[at], sum, 1e-5));
          CHECK(check::close(grad[at], open_slope, 1e-4));
          CHECK(check::close(closed[at], closed_slope, 1e-4));
        }
  }
}
