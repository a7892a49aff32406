// Cross entropy, arg-max and the optimisers against arithmetic in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

TEST(cross_entropy_and_its_gradient) {
  for (const int64_t c : {1, 2, 7, 16, 33, 70})
    for (const int64_t n : {1, 5, 3000}) {
      const int64_t ld = c + 1;
      std::vector<float> logits = data::floats((n - 1) * ld + c, 1), grad(size_t((n - 1) * ld + c), -7.0f);
      for (float& v : logits) v *= 30.0f;
      std::vector<int64_t> labels = data::ids<int64_t>(n, c, 2), rows;
      for (int64_t i = 0; i < n; i += 2) rows.push_back(i);
      for (int64_t i = 1; i < n; i += 2) labels[size_t(i)] = -1;  // not listed, so not read
      double loss = -1, want = 0;
      int64_t correct = -1;
      CHECK(gw_cross_entropy_f32(n, c, logits.data(), ld, rows.data(), int64_t(rows.size()), labels.data(), 0.5,
                                 grad.data(), ld, &loss, &correct) == 0);
      int64_t right = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float* x = logits.data() + i * ld;
        const int64_t y = labels[size_t(i)];
        double high = x[0], sum = 0;
        int64_t best = 0;
        for (int64_t j = 1; j < c; ++j)
          if (x[j] > high) high = x[best = j];
        for (int64_t j = 0; j < c; ++j) sum += std::exp(double(x[j]) - high);
        for (int64_t j = 0; j < c; ++j) {
          const double p = std::exp(double(x[j]) - high) / sum;
          CHECK(check::close(grad[size_t(i * ld + j)], i % 2 == 0 ? 0.5 * (p - double(j == y)) : 0.0, 1e-5));
        }
        if (i % 2) continue;
        want += std::log(sum) + high - double(x[y]);
        right += best == y;
      }
      CHECK(check::close(loss, want, 1e-5) && correct == right);
    }
}

TEST(cross_entropy_refuses_bad_rows_and_labels) {
  std::vector<float> logits(6), grad(6);
  std::vector<int64_t> labels = {0, 3}, rows = {0, 1}, beyond = {2}, below = {-1};
  double loss = 0;
  int64_t correct = 0;
  const auto run = [&](const std::vector<int64_t>& listed) {
    return gw_cross_entropy_f32(2, 3, logits.data(), 3, listed.data(), int64_t(listed.size()), labels.data(), 1.0,
                                grad.data(), 3, &loss, &correct);
  };
  CHECK(run(rows) != 0 && run(beyond) != 0 && run(below) != 0);
  CHECK(gw_cross_entropy_f32(2, 0, logits.data(), 3, nullptr, 0, labels.data(), 1.0, nullptr, 0, &loss, &correct) != 0);
}

// Loss and derivative of one entry in double.
static double entry(bool squared, double x, double y, double& slope) {
  if (squared) {
    slope = 2 * (x - y);
    return (x - y) * (x - y);
  }
  slope = 1 / (1 + std::exp(-x)) - y;
  return std::max(x, 0.0) - x * y + std::log1p(std::exp(-std::abs(x)));
}

TEST(losses_of_entries_and_their_gradients) {
  for (const bool squared : {false, true})
    for (const int64_t c : {1, 3, 16, 33, 1500})
      for (const int64_t n : {1, 6, 700})
        for (const int64_t gap : {0, 2})
          for (const bool listed : {false, true}) {
            const int64_t ld = c + gap;
            std::vector<float> x = data::floats((n - 1) * ld + c, 3), y = data::floats(n * c, 4);
            std::vector<float> grad(x.size(), -7.0f);
            for (float& v : x) v *= 25.0f;
            for (size_t k = 0; k < y.size(); ++k) y[k] = k % 5 == 3 ? NAN : squared ? y[k] : float(y[k] > 0);
            std::vector<int64_t> rows;
            for (int64_t i = 0; i < n; i += 2) rows.insert(rows.end(), i % 4 == 0 ? 2 : 1, i);  // some twice
            double loss = -1, want = 0;
            int64_t counts[4], wanted[4] = {0, 0, 0, 0};
            CHECK(gw_entry_loss_f32(squared, n, c, x.data(), ld, listed ? rows.data() : nullptr,
                                    listed ? int64_t(rows.size()) : 0, y.data(), c, 0.25, grad.data(), ld, &loss,
                                    counts) == 0);
            for (int64_t i = 0; i < n; ++i) {
              const int64_t times = !listed ? 1 : i % 4 == 0 ? 2 : i % 2 == 0 ? 1 : 0;
              for (int64_t j = 0; j < c; ++j) {
                const double value = x[size_t(i * ld + j)], label = y[size_t(i * c + j)];
                const bool known = label == label;
                double slope = 0;
                const double one = known ? entry(squared, value, label, slope) : 0;
                CHECK(check::close(grad[size_t(i * ld + j)], 0.25 * double(times) * slope, 2e-6));
                want += double(times) * one;
                wanted[0] += known ? times : 0;
                wanted[1] += known && value > 0 && label > 0.5 ? times : 0;
                wanted[2] += known && value > 0 ? times : 0;
                wanted[3] += known && label > 0.5 ? times : 0;
              }
            }
            CHECK(check::close(loss, want, 2e-6));
            for (int k = 0; k < 4; ++k) CHECK(counts[k] == wanted[k]);
          }
}

TEST(losses_of_entries_at_the_ends) {
  const std::vector<float> x = {30, -30, 200, -200, 17}, y = {1, 0, 0, 1, 1};
  std::vector<float> over = x;
  for (size_t k = 0; k < x.size(); ++k) {  // small losses keep their digits, large ones stay finite
    double loss = 0, slope = 0;
    int64_t counts[4];
    CHECK(gw_entry_loss_f32(0, 1, 1, &x[k], 1, nullptr, 0, &y[k], 1, 1.0, &over[k], 1, &loss, counts) == 0);
    const double want = entry(false, x[k], y[k], slope);
    CHECK(std::abs(loss - want) <= 1e-6 * want && check::close(over[k], slope, 1e-6));
  }
  double loss = 0;
  int64_t counts[4];
  const int64_t beyond = 1;
  const float odd = NAN;
  CHECK(gw_entry_loss_f32(0, 1, 1, &odd, 1, nullptr, 0, y.data(), 1, 1.0, nullptr, 0, &loss, counts) == 0);
  CHECK(std::isnan(loss));
  CHECK(gw_entry_loss_f32(0, 1, 1, x.data(), 1, &beyond, 1, y.data(), 1, 1.0, nullptr, 0, &loss, counts) != 0);
  CHECK(gw_entry_loss_f32(0, 1, 0, x.data(), 1, nullptr, 0, y.data(), 1, 1.0, nullptr, 0, &loss, counts) != 0);
}

TEST(adam_follows_the_paper) {
  for (const int64_t n : {0, 1, 19, 100003}) {
    std::vector<float> p = data::floats(n, 1), m(size_t(n), 0.0f), v(size_t(n), 0.0f);
    std::vector<double> q(p.begin(), p.end()), qm(size_t(n), 0.0), qv(size_t(n), 0.0);
    float step = 0;
    for (int t = 1; t <= 3; ++t) {
      const std::vector<float> g = data::floats(n, uint64_t(t) + 10);
      const gw_adam_tensor_f32 tensor = {
          n, data::pointer(p), g.data(), data::pointer(m), data::pointer(v), &step, 0.01, 0.9, 0.999, 1e-8, 0.1, 0, 0};
      CHECK(gw_adam_f32(&tensor, 1) == 0);
      for (size_t i = 0; i < size_t(n); ++i) {
        const double d = double(g[i]) + 0.1 * q[i];
        qm[i] = 0.9 * qm[i] + 0.1 * d;
        qv[i] = 0.999 * qv[i] + 0.001 * d * d;
        q[i] -= 0.01 * (qm[i] / (1 - std::pow(0.9, t))) / (std::sqrt(qv[i] / (1 - std::pow(0.999, t))) + 1e-8);
      }
    }
    CHECK(step == 3.0f);
    for (size_t i = 0; i < size_t(n); ++i) CHECK(check::close(p[i], q[i], 1e-4));
  }
}

TEST(sgd_with_momentum) {
  const int64_t n = 70001;
  std::vector<float> p = data::floats(n, 1), buffer(size_t(n), NAN);
  std::vector<double> q(p.begin(), p.end()), want(size_t(n), 0.0);
  for (int t = 0; t < 3; ++t) {
    const std::vector<float> g = data::floats(n, uint64_t(t) + 10);
    const gw_sgd_tensor_f32 tensor = {n, p.data(), g.data(), buffer.data(), 0.1, 0.9, 0.0, 0.0, 0, 0, t == 0};
    CHECK(gw_sgd_f32(&tensor, 1) == 0);
    for (size_t i = 0; i < size_t(n); ++i) {
      want[i] = t == 0 ? double(g[i]) : 0.9 * want[i] + double(g[i]);
      q[i] -= 0.1 * want[i];
    }
  }
  for (size_t i = 0; i < size_t(n); ++i) CHECK(check::close(p[i], q[i], 1e-5));
  CHECK(gw_sgd_f32(nullptr, 1) == gw::bad_argument);
}
