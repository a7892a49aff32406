// Products with several terms: rows as they lie, rows by index and sums over edges, against double.
#include <cstdint>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

struct three_terms {
  int64_t n, k, m, table = 70;
  std::vector<float> lying, x, weights, scale, kept;
  std::vector<int64_t> ids;
  data::graph edges;
  gw_adjacency view;

  three_terms(int64_t rows, int64_t inner, int64_t columns)
      : n(rows),
        k(inner),
        m(columns),
        lying(data::floats(n * k, 1)),
        x(data::floats(table * k, 2)),
        weights(data::floats(3 * k * m, 3)),
        scale(data::floats(n, 4)),
        kept(size_t(n * k), -7.0f),
        ids(data::ids<int64_t>(n, table, 5)),
        edges(n, table, n == 0 ? 0 : 4 * n, 6, true),
        view(edges.view()) {}

  std::vector<gw_term_f32> terms() {
    const float* w = data::pointer(weights);
    return {
        {k, data::pointer(lying), k, 0, nullptr, nullptr, nullptr, nullptr, 0, w, m, 0, 0},
        {k, x.data(), k, table, data::pointer(ids), nullptr, nullptr, nullptr, 0, w + k * m, m, 0, 0},
        {k, x.data(), k, table, nullptr, &view, data::pointer(scale), data::pointer(kept), k, w + 2 * k * m, m, 0, 0}};
  }

  // Row i of the three operands side by side.
  [[nodiscard]] std::vector<double> row(int64_t i) const {
    std::vector<double> out(size_t(3 * k), 0.0);
    for (int64_t p = 0; p < k; ++p) {
      out[size_t(p)] = lying[size_t(i * k + p)];
      out[size_t(k + p)] = x[size_t(ids[size_t(i)] * k + p)];
      double sum = 0;
      for (int64_t e = edges.indptr[size_t(i)]; e < edges.indptr[size_t(i + 1)]; ++e)
        sum += x[size_t(edges.indices[size_t(e)] * k + p)];
      out[size_t(2 * k + p)] = sum * double(scale[size_t(i)]);
    }
    return out;
  }
};

}  // namespace

TEST(products_of_several_terms) {
  for (const int64_t n : {0, 1, 7, 130, 900})
    for (const int64_t k : {1, 17, 64, 130})
      for (const int64_t m : {1, 15, 33, 65}) {
        three_terms given(n, k, m);
        const std::vector<gw_term_f32> terms = given.terms();
        const std::vector<float> bias = data::floats(m, 9);
        gw_epilogue_f32 stages{};
        stages.bias = bias.data();
        std::vector<float> y(size_t(n * m), -7.0f);
        CHECK(gw_gemm_terms_f32(n, m, terms.data(), 3, &stages, data::pointer(y), m) == 0);
        for (int64_t i = 0; i < n; ++i) {
          const std::vector<double> row = given.row(i);
          for (int64_t j = 0; j < m; ++j) {
            double want = bias[size_t(j)];
            for (int64_t p = 0; p < 3 * k; ++p) want += row[size_t(p)] * double(given.weights[size_t(p * m + j)]);
            CHECK(check::close(y[size_t(i * m + j)], want, 2e-3));
          }
          for (int64_t p = 0; p < k; ++p)
            CHECK(check::close(given.kept[size_t(i * k + p)], row[size_t(2 * k + p)], 1e-4));
        }
      }
}

TEST(products_that_are_written_past_the_cache) {
  const int64_t n = 33000, k = 64, m = 64;
  for (const int64_t ld_kept : {k, k + 3}) {  // sums that are kept as one stretch, and with room between rows
    three_terms given(n, k, m);
    std::vector<gw_term_f32> terms = given.terms();
    std::vector<float> room(size_t(n * m + 16), -7.0f), kept(size_t(n * ld_kept), -7.0f);
    float* const y = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) / sizeof(float) % 16;
    terms[2].kept = kept.data();
    terms[2].ld_kept = ld_kept;
    CHECK(gw_gemm_terms_f32(n, m, terms.data(), 3, nullptr, y, m) == 0);
    for (int64_t i = 3; i < n; i += 89) {  // the rows before are hubs, whose long sums round more
      const std::vector<double> row = given.row(i);
      for (int64_t j = 0; j < m; ++j) {
        double want = 0;
        for (int64_t p = 0; p < 3 * k; ++p) want += row[size_t(p)] * double(given.weights[size_t(p * m + j)]);
        CHECK(check::close(y[i * m + j], want, 2e-3));
      }
      for (int64_t p = 0; p < ld_kept; ++p)
        CHECK(check::close(kept[size_t(i * ld_kept + p)], p < k ? row[size_t(2 * k + p)] : -7.0, 1e-4));
    }
  }
}

TEST(an_addend_of_fewer_rows) {
  for (const int64_t n : {1, 11, 100})
    for (const int64_t m : {3, 16, 40})
      for (const int64_t rows : {int64_t{1}, n / 2 + 1, n}) {
        std::vector<float> x = data::floats(n, 1), w = data::floats(m, 2), addend = data::floats(rows * m, 3);
        gw_epilogue_f32 stages{};
        stages.addend = addend.data();
        stages.ld_addend = m;
        stages.addend_rows = rows;
        std::vector<float> product(size_t(n * m)), applied(size_t(n * m));
        CHECK(gw_gemm_nn_f32(n, 1, m, x.data(), 1, w.data(), m, 0, &stages, product.data(), m, nullptr, 0) == 0);
        std::vector<float> plain(size_t(n * m));
        for (int64_t i = 0; i < n * m; ++i) plain[size_t(i)] = x[size_t(i / m)] * w[size_t(i % m)];
        CHECK(gw_rows_apply_f32(n, m, plain.data(), m, &stages, applied.data(), m, nullptr, 0) == 0);
        for (int64_t i = 0; i < n * m; ++i) {
          const double want = double(plain[size_t(i)]) + (i / m < rows ? double(addend[size_t(i)]) : 0.0);
          CHECK(check::close(product[size_t(i)], want, 1e-6) && check::close(applied[size_t(i)], want, 1e-6));
        }
      }
}

TEST(terms_that_do_not_fit_are_refused) {
  three_terms given(5, 3, 2);
  std::vector<float> y(10);
  const auto refused = [&](auto&& change) {
    std::vector<gw_term_f32> terms = given.terms();
    change(terms);
    return gw_gemm_terms_f32(5, 2, terms.data(), 3, nullptr, y.data(), 2);
  };
  CHECK(refused([](auto& terms) { terms[0].k = -1; }) == gw::bad_argument);
  CHECK(refused([](auto& terms) { terms[0].ldx = 2; }) == gw::bad_argument);
  CHECK(refused([](auto& terms) { terms[1].table_rows = 1; }) == gw::out_of_range);
  CHECK(refused([](auto& terms) { terms[2].ld_kept = 1; }) == gw::bad_argument);
  CHECK(refused([&](auto& terms) { terms[2].rows = given.ids.data(); }) == gw::bad_argument);
}
