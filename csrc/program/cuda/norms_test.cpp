// What `train --self-test` does of norms: forward, backward and the parts of a layer norm against plain loops.
#include "norms.h"

#include "self_test.h"

namespace program {

namespace {

constexpr int64_t rows_of_x = 700, width = 33;
constexpr double eps = 1e-5;

struct Column {
  double mean = 0, variance = 0, sum = 0, product = 0;  // of x; of dy, and of dy times x less its mean
  [[nodiscard]] double inverse() const { return 1.0 / std::sqrt(variance + eps); }
};

Column column(const Table& x, const Table& dy, int64_t c) {
  Column found;
  for (int64_t r = 0; r < x.rows; ++r) found.mean += x.at(r, c) / double(x.rows);
  for (int64_t r = 0; r < x.rows; ++r) {
    const double apart = x.at(r, c) - found.mean;
    found.variance += apart * apart / double(x.rows);
    found.sum += dy.at(r, c);
    found.product += dy.at(r, c) * apart;
  }
  return found;
}

void test_columns() {
  Table x(rows_of_x, width), weight(1, width), bias(1, width), dy(rows_of_x, width);
  Table stats(2, width, false), y(rows_of_x, width, false), dx(rows_of_x, width, false);
  Table dweight(1, width, false), dbias(1, width, false), mean(1, width), variance(1, width);
  const Table mean_before = mean, variance_before = variance;
  const Norm norm{weight.numbers.data(), bias.numbers.data(), eps, true};
  batch_norm(x.matrix(), norm, stats.matrix(), y.matrix());
  finish();
  std::vector<Column> columns;
  for (int64_t c = 0; c < width; ++c) columns.push_back(column(x, dy, c));
  const auto of = [&](int64_t c) { return columns[size_t(c)]; };
  compare("statistics", stats, [&](int64_t r, int64_t c) { return r ? of(c).variance : of(c).mean; });
  compare("batch_norm", y, [&](int64_t r, int64_t c) {
    return std::max((x.at(r, c) - of(c).mean) * of(c).inverse() * weight.at(0, c) + bias.at(0, c), 0.0);
  });
  batch_norm_grad(x.matrix(), stats.matrix(), dy.matrix(), norm, dx.matrix(), dweight.numbers.data(),
                  dbias.numbers.data());
  compare("its gradient", dx, [&](int64_t r, int64_t c) {
    const double n = double(rows_of_x), by = of(c).inverse();
    const double along = (x.at(r, c) - of(c).mean) * of(c).product * by * by / n;
    return by * weight.at(0, c) * (dy.at(r, c) - of(c).sum / n - along);
  });
  compare("by its weight", dweight, [&](int64_t, int64_t c) { return of(c).product * of(c).inverse(); });
  compare("by its bias", dbias, [&](int64_t, int64_t c) { return of(c).sum; });
  Numbers<int64_t> batches(1);
  track(stats.matrix(), rows_of_x, 0.1, mean.matrix(), variance.matrix(), batches.data());
  compare("running means", mean, [&](int64_t, int64_t c) { return 0.9 * mean_before.at(0, c) + 0.1 * of(c).mean; });
  compare("running variances", variance, [&](int64_t, int64_t c) {
    return 0.9 * variance_before.at(0, c) + 0.1 * of(c).variance * double(rows_of_x) / double(rows_of_x - 1);
  });
  failures += batches[0] != 1;
}

void test_rows() {
  Table x(rows_of_x, width), z(rows_of_x, width), of_rows(rows_of_x, 1), of_columns(1, width);
  Table sums(rows_of_x, 1, false), y(rows_of_x, width, false);
  row_sum(x.matrix(), sums.matrix());
  compare("row_sum", sums, [&](int64_t r, int64_t) {
    double total = 0.0;
    for (int64_t c = 0; c < width; ++c) total += x.at(r, c);
    return total;
  });
  multiply(x.matrix(), z.matrix(), y.matrix());
  compare("multiply", y, [&](int64_t r, int64_t c) { return x.at(r, c) * z.at(r, c); });
  row_add(x.matrix(), of_rows.numbers.data(), y.matrix());
  compare("row_add", y, [&](int64_t r, int64_t c) { return x.at(r, c) + of_rows.at(r, 0); });
  col_scale(x.matrix(), of_columns.numbers.data(), y.matrix());
  compare("col_scale", y, [&](int64_t r, int64_t c) { return x.at(r, c) * of_columns.at(0, c); });
  fill_cols(of_rows.numbers.data(), y.matrix());
  compare("fill_cols", y, [&](int64_t r, int64_t) { return of_rows.at(r, 0); });
  for (float& number : of_rows.numbers) number = std::abs(number);
  for (const double exponent : {-0.5, -1.0, -1.5}) {
    power(of_rows.matrix(), exponent, sums.matrix(), 0.5);
    compare("power", sums, [&](int64_t r, int64_t) { return std::pow(of_rows.at(r, 0) + 0.5, exponent); });
  }
}

void test_norms() {
  test_columns();
  test_rows();
}

[[maybe_unused]] const bool added = [] {
  more_tests().push_back(test_norms);
  return true;
}();

}  // namespace

}  // namespace program
