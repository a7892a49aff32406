// What the dense kernels promise beyond their sizes: deep products through every epilogue stage, the numbering of
// dropout's draws, the error of exp and log.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"
#include "graphweft/explog.h"
#include "graphweft/rng.h"

TEST(deep_products_through_the_epilogue) {
  for (const int64_t n : {0, 37})
    for (const int64_t k : {17, 790})
      for (const int64_t m : {7, 21, 70}) {
        auto x = data::floats(n * k, 1), w = data::floats(k * m, 2), bias = data::floats(m, 3);
        auto scale = data::floats(n, 4), mask = data::floats(n * m, 5);
        std::vector<float> y(size_t(n * m)), sums(size_t(m), -7.0f);
        const gw_epilogue_f32 stages{data::pointer(scale), bias.data(), data::pointer(mask), m,      1,
                                     data::pointer(mask),  m,           sums.data(),         nullptr};
        CHECK(gw_gemm_nn_f32(n, k, m, data::pointer(x), k, w.data(), m, 0, &stages, data::pointer(y), m, nullptr, 0) ==
              0);
        std::vector<double> total(size_t(m), 0.0);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < m; ++j) {
            double t = 0.0;
            for (int64_t e = 0; e < k; ++e) t += double(x[size_t(i * k + e)]) * double(w[size_t(e * m + j)]);
            t = t * double(scale[size_t(i)]) + double(bias[size_t(j)]) + double(mask[size_t(i * m + j)]);
            t = mask[size_t(i * m + j)] > 0.0f ? std::max(t, 0.0) : 0.0;
            total[size_t(j)] += t;
            CHECK(std::abs(double(y[size_t(i * m + j)]) - t) < 1e-4);
          }
        for (int64_t j = 0; j < m; ++j) CHECK(check::close(double(sums[size_t(j)]), total[size_t(j)], 1e-4));
      }
}

TEST(dropout_draws_are_numbered_by_element) {
  const auto x = data::floats(65 * 47, 1);
  std::vector<float> y(x.size());
  CHECK(gw_dropout_f32(65, 47, x.data(), 47, 0.25, 3, 4, y.data(), 47, nullptr, 0) == 0);
  for (uint64_t i = 0; i < y.size(); ++i) {
    const uint64_t place = i % 64;
    const auto block = gw::random_block(3, 4, i / 64 * 8 + place % 32 / 4);
    const uint32_t draw = block[2 * (place / 32) + place % 4 / 2] >> (16 * (place % 2)) & 0xFFFFu;
    CHECK(y[i] == (draw >= 16384 ? x[i] * float(1.0 / 0.75) : 0.0f));
  }
}

TEST(exponential_and_logarithm_are_within_two_units_in_the_last_place) {
  double worst_exp = 0.0, worst_log = 0.0;
  for (int i = 0; i <= 40000; ++i) {
    const float x = -87.0f + 87.5f * float(i) / 40000.0f, y = 1.0f + float(i) * 0.03f;
    const double e = std::exp(double(x)), l = std::log(double(y));
    const float got_e = gw::exp_lanes(gw::vf::vec{} + x)[0], got_l = gw::log_lanes(gw::vf::vec{} + y)[0];
    worst_exp = std::max(worst_exp, std::abs(double(got_e) - e) / (e * 0x1p-23));
    if (l > 0.0) worst_log = std::max(worst_log, std::abs(double(got_l) - l) / (l * 0x1p-23));
  }
  CHECK(worst_exp < 2.0);
  CHECK(worst_log < 2.0);
  CHECK(gw::exp_lanes(gw::vf::vec{} - 200.0f)[0] == 0.0f);
  CHECK(std::isnan(gw::exp_lanes(gw::vf::vec{} + NAN)[0]) && std::isnan(gw::log_lanes(gw::vf::vec{} + NAN)[0]));
}
