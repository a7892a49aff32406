// Cross entropy, arg-max and the optimisers against arithmetic in double.
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.h"
#include "data.h"
#include "entry_points.h"

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

TEST(argmax_takes_the_first_of_equals) {
  const std::vector<float> x = {1, 3, 3, 0, -1, -1, -1, -1, 0, NAN, 9, NAN};
  std::vector<int64_t> out(3);
  CHECK(gw_argmax_rows_f32(3, 4, x.data(), 4, out.data()) == 0);
  CHECK(out[0] == 1 && out[1] == 0 && out[2] == 1);
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
