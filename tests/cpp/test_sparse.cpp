// Sparse times dense with every option and dtype; sparse features and back.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

const int64_t widths[] = {0, 1, 33, 100};

struct options {
  const float* weight = nullptr;
  const float* src_scale = nullptr;
  double self_coef = 0;
  bool mean = false;
  const float* self_factor = nullptr;
};

template <class T>
std::vector<double> aggregate(const data::graph& g, const std::vector<T>& x, int64_t ldx, int64_t f, const options& o) {
  std::vector<double> out(size_t(g.num_rows * f), 0.0);
  for (int64_t i = 0; i < g.num_rows; ++i)
    for (int64_t k = 0; k < f; ++k) {
      double sum = 0;
      for (int64_t p = g.indptr[size_t(i)]; p < g.indptr[size_t(i + 1)]; ++p) {
        const int64_t j = g.indices[size_t(p)];
        const double coef = (o.weight ? double(o.weight[p]) : 1.0) * (o.src_scale ? double(o.src_scale[j]) : 1.0);
        sum += coef * double(x[size_t(j * ldx + k)]);
      }
      const int64_t degree = g.indptr[size_t(i + 1)] - g.indptr[size_t(i)];
      if (o.mean && degree) sum /= double(degree);
      if (o.self_coef != 0)
        sum += o.self_coef * (o.self_factor ? double(*o.self_factor) : 1.0) *
               (o.src_scale ? double(o.src_scale[i]) : 1.0) * double(x[size_t(i * ldx + k)]);
      out[size_t(i * f + k)] = sum;
    }
  return out;
}

int64_t span(int64_t rows, int64_t width, int64_t ld) { return rows == 0 || width == 0 ? 0 : (rows - 1) * ld + width; }

// The nearest bfloat16, ties to even.
float rounded(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Neighbours' rows in bfloat16, the row's own in float.
void agrees_rounded(data::graph& g, int64_t f, const options& o) {
  const gw_adjacency a = g.view();
  std::vector<float> x = data::floats(g.num_cols * f, 4);
  std::vector<float> y(size_t(g.num_rows * f), -7.0f), scaled(x.size());
  std::vector<uint16_t> panel(size_t(g.num_cols * 96));
  CHECK(gw_spmm_f32_bf16(&a, data::pointer(x), f, f, o.weight, o.src_scale, o.self_coef, o.self_factor, o.mean, nullptr,
                         -1, data::pointer(panel), data::pointer(y), f) == 0);
  for (size_t i = 0; i < x.size(); ++i) scaled[i] = rounded(x[i] * (o.src_scale ? o.src_scale[int64_t(i) / f] : 1.0f));
  std::vector<double> want = aggregate(g, scaled, f, f, {o.weight, nullptr, 0, o.mean});
  if (o.self_coef != 0) {
    for (size_t i = 0; i < want.size(); ++i)
      want[i] += o.self_coef * (o.self_factor ? double(*o.self_factor) : 1.0) *
                 (o.src_scale ? double(o.src_scale[int64_t(i) / f]) : 1.0) * double(x[i]);
  }
  for (size_t i = 0; i < want.size(); ++i) CHECK(check::close(y[i], want[i], 1e-4));
}

void agrees(data::graph& g, int64_t f, const options& o, int32_t prefetch, bool with_panel) {
  const int64_t ldx = f + 1, ldy = f + 2;
  const gw_adjacency a = g.view();
  std::vector<float> x = data::floats(span(g.num_cols, f, ldx), 4), y(size_t(span(g.num_rows, f, ldy)), -7.0f);
  std::vector<float> panel(with_panel ? size_t(g.num_cols * 48) : 0);
  CHECK(gw_spmm_f32(&a, data::pointer(x), ldx, f, o.weight, o.src_scale, o.self_coef, o.self_factor, o.mean, nullptr,
                    prefetch, data::pointer(panel), 0, data::pointer(y), ldy) == 0);
  const std::vector<double> want = aggregate(g, x, ldx, f, o);
  for (int64_t i = 0; i < g.num_rows; ++i) {
    for (int64_t k = 0; k < f; ++k) CHECK(check::close(y[size_t(i * ldy + k)], want[size_t(i * f + k)], 1e-4));
    if (f > 0 && i + 1 < g.num_rows) CHECK(y[size_t(i * ldy + f)] == -7.0f);
  }
  if (!with_panel) return;
  // no bit changes where that is asked for
  std::vector<float> plain(y.size(), -7.0f), by_panel(y.size(), -7.0f);
  for (const bool room : {false, true})
    CHECK(gw_spmm_f32(&a, data::pointer(x), ldx, f, o.weight, o.src_scale, o.self_coef, o.self_factor, o.mean, nullptr,
                      prefetch, room ? data::pointer(panel) : nullptr, 1, data::pointer(room ? by_panel : plain),
                      ldy) == 0);
  CHECK(plain == by_panel);
}

}  // namespace

TEST(aggregation_with_every_option) {
  data::graph graphs[] = {{0, 0, 0, 1}, {1, 1, 0, 1}, {4, 9, 0, 1}, {60, 60, 700, 2}, {90, 90, 3000, 3, true}};
  for (data::graph& g : graphs) {
    const std::vector<float> weight = data::floats(g.num_edges, 5), scale = data::floats(g.num_cols, 6);
    for (const int64_t f : widths)
      for (const bool panel : {false, true}) {
        agrees(g, f, {}, -1, panel);
        agrees(g, f, {nullptr, nullptr, 0, true}, 8, panel);
        agrees(g, f, {weight.data(), scale.data(), 0, false}, 0, panel);
        if (g.num_rows != g.num_cols) continue;
        const float factor = -1.75f;
        agrees(g, f, {nullptr, scale.data(), 0.5, false}, 300, panel);
        agrees(g, f, {nullptr, nullptr, 0.5, true, &factor}, 300, panel);
      }
  }
}

TEST(aggregation_of_rounded_rows) {
  data::graph graphs[] = {{0, 0, 0, 1}, {1, 1, 0, 1}, {4, 9, 0, 1}, {60, 60, 700, 2}, {90, 90, 3000, 3, true}};
  for (data::graph& g : graphs) {
    const std::vector<float> weight = data::floats(g.num_edges, 5), scale = data::floats(g.num_cols, 6);
    for (const int64_t f : {0, 1, 17, 33, 64, 100, 193}) {
      agrees_rounded(g, f, {});
      agrees_rounded(g, f, {weight.data(), scale.data(), 0, true});
      if (g.num_rows != g.num_cols) continue;
      const float factor = -1.75f;
      agrees_rounded(g, f, {nullptr, scale.data(), 0.5, false});
      agrees_rounded(g, f, {weight.data(), nullptr, 1, false, &factor});
    }
  }
  const gw_adjacency a = graphs[3].view();
  std::vector<float> x(60), y(60);
  CHECK(gw_spmm_f32_bf16(&a, x.data(), 1, 1, nullptr, nullptr, 0, nullptr, 0, nullptr, -1, nullptr, y.data(), 1) ==
        gw::bad_argument);
}

TEST(aggregation_does_what_the_epilogue_says) {
  data::graph g(200, 200, 5000, 7, true);
  const gw_adjacency a = g.view();
  const int64_t f = 45;
  const std::vector<float> x = data::floats(200 * f, 1), scale = data::floats(200, 2), bias = data::floats(f, 3);
  std::vector<float> y(size_t(200 * f)), sums(size_t(f), -7.0f);
  gw_epilogue_f32 stages{};
  stages.row_scale = scale.data();
  stages.bias = bias.data();
  stages.relu = 1;
  stages.col_sum = sums.data();
  CHECK(gw_spmm_f32(&a, x.data(), f, f, nullptr, nullptr, 0, nullptr, 0, &stages, -1, nullptr, 0, y.data(), f) == 0);
  const std::vector<double> want = aggregate(g, x, f, f, {});
  std::vector<double> want_sums(size_t(f), 0.0);
  for (int64_t i = 0; i < 200; ++i)
    for (int64_t k = 0; k < f; ++k) {
      const double t = std::max(want[size_t(i * f + k)] * double(scale[size_t(i)]) + double(bias[size_t(k)]), 0.0);
      want_sums[size_t(k)] += t;
      CHECK(check::close(y[size_t(i * f + k)], t, 1e-4));
    }
  for (int64_t k = 0; k < f; ++k) CHECK(check::close(sums[size_t(k)], want_sums[size_t(k)], 1e-4));
}

TEST(aggregation_in_double_and_bfloat16) {
  data::graph g(50, 70, 900, 9);
  const gw_adjacency a = g.view();
  for (const int64_t f : widths) {
    const std::vector<float> single = data::floats(70 * f, 4);
    std::vector<double> x(single.begin(), single.end()), y(size_t(50 * f));
    CHECK(gw_spmm_f64(&a, data::pointer(x), f, f, nullptr, nullptr, 0, 0, -1, nullptr, data::pointer(y), f) == 0);
    const std::vector<double> want = aggregate(g, x, f, f, {});
    for (size_t i = 0; i < want.size(); ++i) CHECK(check::close(y[i], want[i], 1e-12));

    std::vector<uint16_t> half(single.size()), out(size_t(50 * f));
    std::vector<float> rounded(single.size());
    for (size_t i = 0; i < single.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &single[i], 4);
      half[i] = uint16_t(bits >> 16);
      bits &= 0xffff0000u;
      std::memcpy(&rounded[i], &bits, 4);
    }
    CHECK(gw_spmm_bf16(&a, data::pointer(half), f, f, nullptr, nullptr, 0, nullptr, 0, nullptr, -1, nullptr, 0, 0,
                       data::pointer(out), f) == 0);
    const std::vector<double> want_half = aggregate(g, rounded, f, f, {});
    for (size_t i = 0; i < want_half.size(); ++i) {
      const uint32_t bits = uint32_t(out[i]) << 16;
      float got = 0;
      std::memcpy(&got, &bits, 4);
      CHECK(check::close(got, want_half[i], 1.0 / 128));
    }
  }
}

TEST(aggregation_refuses_nonsense) {
  data::graph g(3, 2, 4, 1);
  gw_adjacency a = g.view();
  std::vector<float> x(8), y(12);
  const auto run = [&](const gw_adjacency* adj, int64_t width, double self) {
    return gw_spmm_f32(adj, x.data(), 4, width, nullptr, nullptr, self, nullptr, 0, nullptr, 0, nullptr, 0, y.data(),
                       4);
  };
  CHECK(run(nullptr, 4, 0) == gw::bad_argument && run(&a, -1, 0) == gw::bad_argument);
  CHECK(gw_spmm_f32(&a, x.data(), INT64_MAX / 2, 4, nullptr, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0, y.data(),
                    4) == gw::bad_argument);
}

TEST(rows_beyond_the_columns_have_no_self) {
  data::graph g(7, 4, 12, 1);
  const gw_adjacency a = g.view();
  for (const int64_t f : widths) {
    std::vector<float> x = data::floats(4 * f, 2);
    std::vector<float> y(size_t(7 * f));
    CHECK(gw_spmm_f32(&a, data::pointer(x), f, f, nullptr, nullptr, 2.0, nullptr, 0, nullptr, 0, nullptr, 0,
                      data::pointer(y), f) == 0);
    std::vector<double> want = aggregate(g, x, f, f, {});
    for (size_t i = 0; i < size_t(4 * f); ++i) want[i] += 2.0 * double(x[i]);
    for (size_t i = 0; i < want.size(); ++i) CHECK(check::close(y[i], want[i], 1e-5));
  }
}

TEST(dense_features_compress_and_expand) {
  for (const int64_t rows : {0, 1, 400})
    for (const int64_t f : {1, 17, 300}) {
      const int64_t ld = f + 3;
      std::vector<float> x = data::floats(span(rows, f, ld), 3);
      for (float& v : x) v = std::abs(v) < 0.9f ? 0.0f : v;
      std::vector<int64_t> indptr(size_t(rows + 1), 0);
      CHECK(gw_dense_count_nonzero(0, rows, f, ld, data::pointer(x), indptr.data() + 1) == 0);
      for (int64_t r = 0; r < rows; ++r) indptr[size_t(r + 1)] += indptr[size_t(r)];
      std::vector<int32_t> indices(size_t(indptr.back()));
      std::vector<float> values(indices.size()), back(x.size(), 0.0f);
      CHECK(gw_csr_from_dense(0, rows, f, ld, data::pointer(x), indptr.data(), 0, data::pointer(indices),
                              data::pointer(values)) == 0);
      const gw_adjacency a = {rows, f, indptr.back(), indptr.data(), data::pointer(indices), nullptr, 0};
      CHECK(gw_csr_to_dense(&a, 0, data::pointer(values), ld, data::pointer(back)) == 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = 0; k < f; ++k) CHECK(back[size_t(r * ld + k)] == x[size_t(r * ld + k)]);
    }
  const std::vector<float> bad = {1.0f, INFINITY, NAN};
  CHECK(gw_require_finite(0, 1, bad.data()) == 0 && gw_require_finite(0, 3, bad.data()) != 0);
}
