// Dense products, epilogues, column sums, dropout: odd sizes, padded rows, empty inputs.
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

const int64_t sizes[] = {0, 1, 2, 15, 16, 17, 31, 33, 64, 65};

// x[n, k] * w[k, m] in double.
std::vector<double> product(int64_t n, int64_t k, int64_t m, const std::vector<float>& x, int64_t ldx,
                            const std::vector<float>& w) {
  std::vector<double> out(size_t(n * m), 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < k; ++p)
      for (int64_t j = 0; j < m; ++j)
        out[size_t(i * m + j)] += double(x[size_t(i * ldx + p)]) * double(w[size_t(p * m + j)]);
  return out;
}

// As long as a matrix with padded rows must be: the last row has no padding.
int64_t span(int64_t rows, int64_t width, int64_t ld) { return rows == 0 ? 0 : (rows - 1) * ld + width; }

}  // namespace

TEST(products_of_all_small_sizes) {
  for (const int64_t n : {0, 1, 7, 130})
    for (const int64_t k : sizes)
      for (const int64_t m : sizes) {
        const int64_t ldx = k + 3, ldy = m + 1;
        std::vector<float> x = data::floats(span(n, k, ldx), 1), w = data::floats(k * m, 2);
        std::vector<float> y(size_t(span(n, m, ldy)), -7.0f), wt(size_t(k * m));
        for (int64_t p = 0; p < k; ++p)
          for (int64_t j = 0; j < m; ++j) wt[size_t(j * k + p)] = w[size_t(p * m + j)];
        const std::vector<double> want = product(n, k, m, x, ldx, w);
        for (const bool turned : {false, true}) {
          CHECK(gw_gemm_nn_f32(n, k, m, data::pointer(x), ldx, turned ? data::pointer(wt) : data::pointer(w),
                               turned ? k : m, turned, nullptr, data::pointer(y), ldy, nullptr, 0) == 0);
          for (int64_t i = 0; i < n; ++i) {
            for (int64_t j = 0; j < m; ++j) CHECK(check::close(y[size_t(i * ldy + j)], want[size_t(i * m + j)], 1e-5));
            if (i + 1 < n) CHECK(y[size_t(i * ldy + m)] == -7.0f);  // padding stays
          }
        }
      }
}

TEST(weight_gradients_of_all_small_sizes) {
  for (const int64_t n : {0, 1, 9, 1000})
    for (const int64_t k : sizes)
      for (const int64_t m : sizes) {
        const int64_t ldx = k + 2, ldg = m + 5;
        std::vector<float> x = data::floats(span(n, k, ldx), 1), g = data::floats(span(n, m, ldg), 2);
        std::vector<float> scale = data::floats(n, 3), dw(size_t(k * m), -7.0f), sums(size_t(m), -7.0f);
        CHECK(gw_gemm_tn_f32(n, k, m, data::pointer(x), ldx, data::pointer(g), ldg, data::pointer(scale),
                             data::pointer(dw), m, data::pointer(sums), nullptr, 0) == 0);
        std::vector<double> want(size_t(k * m), 0.0), want_sums(size_t(m), 0.0);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < m; ++j) {
            const double value = g[size_t(i * ldg + j)];
            want_sums[size_t(j)] += value;
            for (int64_t p = 0; p < k; ++p)
              want[size_t(p * m + j)] += double(x[size_t(i * ldx + p)]) * value * double(scale[size_t(i)]);
          }
        for (size_t i = 0; i < want.size(); ++i) CHECK(check::close(dw[i], want[i], 1e-4));
        for (size_t j = 0; j < want_sums.size(); ++j) CHECK(check::close(sums[j], want_sums[j], 1e-4));
      }
}

TEST(rows_by_index_give_the_bits_of_gathered_rows) {
  const int64_t table = 90, n = 211;
  for (const int64_t k : sizes)
    for (const int64_t m : sizes) {
      const int64_t ldx = k + 2;
      std::vector<float> x = data::floats(span(table, k, ldx), 1), w = data::floats(k * m, 2),
                         g = data::floats(n * m, 3);
      const std::vector<int64_t> ids = data::ids<int64_t>(n, table, 4);
      std::vector<float> rows(size_t(n * k)), one(size_t(n * m)), other(one), dw(size_t(k * m)), dv(dw);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < k; ++j) rows[size_t(i * k + j)] = x[size_t(ids[size_t(i)] * ldx + j)];
      CHECK(gw_gemm_nn_f32(n, k, m, rows.data(), k, w.data(), m, 0, nullptr, one.data(), m, nullptr, 0) == 0);
      CHECK(gw_gemm_nn_f32(n, k, m, x.data(), ldx, w.data(), m, 0, nullptr, other.data(), m, ids.data(), table) == 0);
      CHECK(one == other);
      CHECK(gw_gemm_tn_f32(n, k, m, rows.data(), k, g.data(), m, nullptr, dw.data(), m, nullptr, nullptr, 0) == 0);
      CHECK(gw_gemm_tn_f32(n, k, m, x.data(), ldx, g.data(), m, nullptr, dv.data(), m, nullptr, ids.data(), table) ==
            0);
      CHECK(dw == dv);
    }
  std::vector<float> x(8, 1.0f), y(4, 0.0f);
  const std::vector<int64_t> beyond = {0, 4};
  CHECK(gw_gemm_nn_f32(2, 2, 2, x.data(), 2, x.data(), 2, 0, nullptr, y.data(), 2, beyond.data(), 4) ==
        gw::out_of_range);
}

TEST(epilogue_stages_run_in_order) {
  for (const int64_t f : sizes) {
    const int64_t n = 37;
    std::vector<float> x = data::floats(n * f, 1), scale = data::floats(n, 2), bias = data::floats(f, 3);
    std::vector<float> addend = data::floats(n * f, 4), mask = data::floats(n * f, 5), post = data::floats(n, 6);
    std::vector<float> y(size_t(n * f)), sums(size_t(f), -7.0f);
    const gw_epilogue_f32 stages = {scale.data(),
                                    data::pointer(bias),
                                    data::pointer(addend),
                                    f,
                                    1,
                                    data::pointer(mask),
                                    f,
                                    data::pointer(sums),
                                    post.data(),
                                    0};
    CHECK(gw_rows_apply_f32(n, f, data::pointer(x), f, &stages, data::pointer(y), f, nullptr, 0) == 0);
    std::vector<double> want_sums(size_t(f), 0.0);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < f; ++j) {
        const size_t at = size_t(i * f + j);
        double t = double(x[at]) * double(scale[size_t(i)]) + double(bias[size_t(j)]) + double(addend[at]);
        t = mask[at] > 0 ? std::max(t, 0.0) : 0.0;
        want_sums[size_t(j)] += t;
        CHECK(check::close(y[at], t * double(post[size_t(i)]), 1e-5));
      }
    for (int64_t j = 0; j < f; ++j) CHECK(check::close(sums[size_t(j)], want_sums[size_t(j)], 1e-4));
  }
}

TEST(relu_keeps_not_a_number) {
  std::vector<float> x = {NAN, -1.0f, 2.0f};
  gw_epilogue_f32 stages{};
  stages.relu = 1;
  CHECK(gw_rows_apply_f32(1, 3, x.data(), 3, &stages, x.data(), 3, nullptr, 0) == 0);
  CHECK(std::isnan(x[0]) && x[1] == 0.0f && x[2] == 2.0f);
}

TEST(column_sums_of_long_matrices) {
  for (const int64_t n : {0, 1, 5000})
    for (const int64_t f : {1, 17, 48}) {
      std::vector<float> x = data::floats(n * f, 9), out(size_t(f), -7.0f);
      CHECK(gw_col_sum_f32(n, f, data::pointer(x), f, out.data()) == 0);
      for (int64_t j = 0; j < f; ++j) {
        double want = 0;
        for (int64_t i = 0; i < n; ++i) want += x[size_t(i * f + j)];
        CHECK(check::close(out[size_t(j)], want, 1e-4));
      }
    }
}

TEST(dropout_scales_what_it_keeps) {
  const int64_t n = 301, f = 37;
  std::vector<float> x(size_t(n * f), 1.0f), y(x), again(x);
  CHECK(gw_dropout_f32(n, f, x.data(), f, 0.5, 7, 3, y.data(), f, nullptr, 0) == 0);
  CHECK(gw_dropout_f32(n, f, x.data(), f, 0.5, 7, 3, again.data(), f, nullptr, 0) == 0);
  CHECK(y == again);
  int64_t kept = 0;
  for (const float v : y) {
    CHECK(v == 0.0f || v == 2.0f);
    kept += v != 0.0f;
  }
  CHECK(std::abs(double(kept) / double(n * f) - 0.5) < 0.03);
  CHECK(gw_dropout_f32(n, f, x.data(), f, 1.0, 7, 3, y.data(), f, nullptr, 0) == 0);
  for (const float v : y) CHECK(v == 0.0f);
  CHECK(gw_dropout_f32(n, f, x.data(), f, 0.0, 7, 3, y.data(), f, nullptr, 0) == 0);
  CHECK(y == x);
  CHECK(gw_dropout_f32(n, f, x.data(), f, NAN, 7, 3, y.data(), f, nullptr, 0) == gw::bad_argument);
}

TEST(negative_sizes_and_overlapping_rows_are_refused) {
  std::vector<float> v(16);
  CHECK(gw_gemm_nn_f32(-1, 2, 2, v.data(), 2, v.data(), 2, 0, nullptr, v.data(), 2, nullptr, 0) == gw::bad_argument);
  CHECK(gw_gemm_nn_f32(3, 2, 2, v.data(), 1, v.data(), 2, 0, nullptr, v.data(), 2, nullptr, 0) == gw::bad_argument);
  CHECK(gw_gemm_tn_f32(3, 2, 2, v.data(), 2, v.data(), 1, nullptr, v.data(), 2, nullptr, nullptr, 0) ==
        gw::bad_argument);
  CHECK(gw_col_sum_f32(1, -2, v.data(), 2, v.data()) == gw::bad_argument);
}
