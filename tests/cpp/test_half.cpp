// Products of operands rounded to bfloat16, by every unit that this processor has, against double over operands that
// are rounded here.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"
#include "graphweft/parallel.h"

namespace {

// The nearest bfloat16, ties to even.
float rounded(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  const uint32_t rest = bits & 0xffffu;
  bits &= 0xffff0000u;
  if (rest > 0x8000u || (rest == 0x8000u && (bits & 0x10000u) != 0)) bits += 0x10000u;
  std::memcpy(&v, &bits, sizeof bits);
  return v;
}

// Multiples of 1/8 in [-1, 1): sums of them are exact.
std::vector<float> eighths(int64_t n, uint64_t seed) {
  std::vector<float> out = data::floats(n, seed);
  for (float& v : out) v = std::floor(v * 8.0f) / 8.0f;
  return out;
}

// Calls body for every unit that there is, and leaves the best one in use.
void each_unit(const std::function<void()>& body) {
  for (int32_t unit = 0; unit <= 2; ++unit) {
    int32_t used = -1;
    CHECK(gw_half_unit(unit, &used) == 0);
    CHECK(used <= unit);
    if (used == unit) body();
  }
  int32_t used = -1;
  gw_half_unit(2, &used);
}

struct matrix {
  int64_t rows, width, ld;
  std::vector<float> v;
  matrix(int64_t rows, int64_t width, int64_t padding, uint64_t seed)
      : rows(rows),
        width(width),
        ld(width + padding),
        v(data::floats(rows == 0 ? 0 : (rows - 1) * (width + padding) + width, seed)) {}
  float* at() { return data::pointer(v); }
  [[nodiscard]] double operator()(int64_t i, int64_t j) const { return double(rounded(v[size_t(i * ld + j)])); }
};

void check_product(int64_t n, int64_t k, int64_t m, bool turned, bool by_index) {
  const int64_t table = by_index ? 50 : n;
  matrix x(table, k, 3, 1), w(turned ? m : k, turned ? k : m, 1, 2);
  matrix addend(n, m, 2, 3), mask(n, m, 0, 4);
  const std::vector<float> bias = data::floats(m, 5), scale = data::floats(n, 6), post = data::floats(n, 7);
  const std::vector<int64_t> ids = data::ids<int64_t>(n, table, 8);
  std::vector<float> sums(size_t(m), -7.0f), y(size_t(n == 0 ? 0 : (n - 1) * (m + 1) + m), -7.0f);
  gw_epilogue_f32 stages{};
  stages.row_scale = scale.data();
  stages.bias = bias.data();
  stages.addend = addend.at();
  stages.ld_addend = addend.ld;
  stages.relu = 1;
  stages.mask = mask.at();
  stages.ld_mask = mask.ld;
  stages.col_sum = data::pointer(sums);
  stages.post_scale = post.data();
  CHECK(gw_gemm_nn_f32_bf16(n, k, m, x.at(), x.ld, w.at(), w.ld, turned, &stages, data::pointer(y), m + 1,
                            by_index ? ids.data() : nullptr, table) == 0);
  std::vector<double> want_sums(size_t(m), 0.0);
  bool near = true;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      double want = 0;
      for (int64_t p = 0; p < k; ++p) want += x(by_index ? ids[size_t(i)] : i, p) * (turned ? w(j, p) : w(p, j));
      want = want * double(scale[size_t(i)]) + double(bias[size_t(j)]) + double(addend.v[size_t(i * addend.ld + j)]);
      want = want < 0 || mask.v[size_t(i * mask.ld + j)] <= 0 ? 0.0 : want;
      want_sums[size_t(j)] += want;
      near = near && check::close(y[size_t(i * (m + 1) + j)], want * double(post[size_t(i)]), 2e-5);
    }
    if (i + 1 < n) near = near && y[size_t(i * (m + 1) + m)] == -7.0f;  // padding stays
  }
  for (int64_t j = 0; j < m; ++j) near = near && check::close(sums[size_t(j)], want_sums[size_t(j)], 1e-4);
  CHECK(near);
}

void check_contraction(int64_t n, int64_t k, int64_t m, bool by_index) {
  const int64_t table = by_index ? 50 : n;
  matrix x(table, k, 3, 1), g(n, m, 2, 2);
  std::vector<float> scale = eighths(n, 3), dw(size_t(k == 0 ? 0 : (k - 1) * (m + 1) + m), -7.0f),
                     sums(size_t(m), -7.0f);
  const std::vector<int64_t> ids = data::ids<int64_t>(n, table, 8);
  CHECK(gw_gemm_tn_f32_bf16(n, k, m, x.at(), x.ld, g.at(), g.ld, data::pointer(scale), data::pointer(dw), m + 1,
                            data::pointer(sums), by_index ? ids.data() : nullptr, table) == 0);
  std::vector<double> want(size_t(k * m), 0.0), want_sums(size_t(m), 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) {
      const float value = g.v[size_t(i * g.ld + j)];
      want_sums[size_t(j)] += double(value);
      const double factor = double(rounded(value * scale[size_t(i)]));
      for (int64_t p = 0; p < k; ++p) want[size_t(p * m + j)] += x(by_index ? ids[size_t(i)] : i, p) * factor;
    }
  bool near = true;
  for (int64_t p = 0; p < k; ++p)
    for (int64_t j = 0; j < m; ++j)
      near = near && check::close(dw[size_t(p * (m + 1) + j)], want[size_t(p * m + j)], 1e-4);
  for (int64_t j = 0; j < m; ++j) near = near && check::close(sums[size_t(j)], want_sums[size_t(j)], 1e-4);
  CHECK(near);
}

// Operands that lie in bfloat16 have the bits of those that are rounded on the way.
void check_stored_contraction(int64_t n, int64_t k, int64_t m, bool by_index) {
  const int64_t table = by_index ? 50 : n;
  matrix x(table, k, 3, 1), g(n, m, 2, 2);
  const auto stored = [](const std::vector<float>& given) {
    std::vector<uint16_t> out;
    for (const float v : given) {
      const float near = rounded(v);
      uint32_t bits;
      std::memcpy(&bits, &near, sizeof bits);
      out.push_back(uint16_t(bits >> 16));
    }
    out.push_back(0);
    return out;
  };
  const std::vector<uint16_t> short_x = stored(x.v), short_g = stored(g.v);
  const std::vector<int64_t> ids = data::ids<int64_t>(n, table, 8);
  const int64_t* const rows = by_index ? ids.data() : nullptr;
  std::vector<float> wide(size_t(k * m + 1), -7.0f);
  CHECK(gw_gemm_tn_f32_bf16(n, k, m, x.at(), x.ld, g.at(), g.ld, nullptr, wide.data(), m, nullptr, rows, table) == 0);
  for (int kinds = 1; kinds < 4; ++kinds) {
    const bool half_x = (kinds & 1) != 0, half_g = (kinds & 2) != 0;
    std::vector<float> dw(size_t(k * m + 1), -7.0f), sums(size_t(m), -7.0f);
    const void* const left = half_x ? static_cast<const void*>(short_x.data()) : x.at();
    const void* const right = half_g ? static_cast<const void*>(short_g.data()) : g.at();
    CHECK(gw_gemm_tn_half_f32_bf16(n, k, m, left, x.ld, half_x, right, g.ld, half_g, dw.data(), m, data::pointer(sums),
                                   rows, table) == 0);
    CHECK(std::memcmp(dw.data(), wide.data(), dw.size() * sizeof(float)) == 0);
    bool near = true;
    for (int64_t j = 0; j < m; ++j) {
      double want = 0;
      for (int64_t i = 0; i < n; ++i) want += half_g ? g(i, j) : double(g.v[size_t(i * g.ld + j)]);
      near = near && check::close(sums[size_t(j)], want, 1e-4);
    }
    CHECK(near);
  }
}

// Rows as they lie, rows by index and sums over edges, of widths that are odd and even.
struct three_halves {
  int64_t n, m, table = 70;
  int64_t k[3];
  std::vector<float> lying, x, y, w, scale, kept;
  std::vector<int64_t> ids;
  data::graph edges;
  gw_adjacency view;

  three_halves(int64_t rows, int64_t inner, int64_t columns)
      : n(rows),
        m(columns),
        k{inner, inner + 1, inner + 2},
        lying(data::floats(n * k[0], 1)),
        x(data::floats(table * k[1], 2)),
        y(eighths(table * k[2], 3)),
        w(data::floats((k[0] + k[1] + k[2]) * m, 4)),
        scale(data::floats(n, 5)),
        kept(size_t(n * k[2]), -7.0f),
        ids(data::ids<int64_t>(n, table, 6)),
        edges(n, table, n == 0 ? 0 : 4 * n, 7, true),
        view(edges.view()) {}

  std::vector<gw_term_f32> terms() {
    const float* at = data::pointer(w);
    return {{k[0], data::pointer(lying), k[0], 0, nullptr, nullptr, nullptr, nullptr, 0, at, m, 0, 0},
            {k[1], x.data(), k[1], table, data::pointer(ids), nullptr, nullptr, nullptr, 0, at + k[0] * m, m, 0, 0},
            {k[2], y.data(), k[2], table, nullptr, &view, data::pointer(scale), data::pointer(kept), k[2],
             at + (k[0] + k[1]) * m, m, 0, 0}};
  }

  // Row i of the sums, exact and then scaled once.
  [[nodiscard]] std::vector<float> summed(int64_t i) const {
    std::vector<float> out(size_t(k[2]), 0.0f);
    for (int64_t e = edges.indptr[size_t(i)]; e < edges.indptr[size_t(i + 1)]; ++e)
      for (int64_t p = 0; p < k[2]; ++p) out[size_t(p)] += y[size_t(edges.indices[size_t(e)] * k[2] + p)];
    for (float& v : out) v *= scale[size_t(i)];
    return out;
  }
  // Row i of the three operands side by side, rounded.
  [[nodiscard]] std::vector<double> row(int64_t i) const {
    std::vector<double> out;
    for (int64_t p = 0; p < k[0]; ++p) out.push_back(double(rounded(lying[size_t(i * k[0] + p)])));
    for (int64_t p = 0; p < k[1]; ++p) out.push_back(double(rounded(x[size_t(ids[size_t(i)] * k[1] + p)])));
    for (const float v : summed(i)) out.push_back(double(rounded(v)));
    return out;
  }
};

// y and the sums in bfloat16 are those in float, rounded.
void check_stored_half(three_halves& given, const std::vector<float>& y) {
  const int64_t n = given.n, m = given.m, k = given.k[2], ldy = m + 1, ld_kept = k + 3;
  std::vector<gw_term_f32> terms = given.terms();
  std::vector<uint16_t> short_y(size_t(n * ldy + 1), 7), kept(size_t(n * ld_kept + 1), 7);
  terms[2].half_kept = kept.data();
  const int both = n > 0 ? gw::bad_argument : gw::ok;  // no row: nothing is kept
  CHECK(gw_gemm_terms_f32_bf16(n, m, terms.data(), 3, nullptr, short_y.data(), ldy, 1) == both);
  terms[2].kept = nullptr;
  terms[2].ld_kept = ld_kept;
  CHECK(gw_gemm_terms_f32_bf16(n, m, terms.data(), 3, nullptr, short_y.data(), ldy, 1) == 0);
  const auto widened = [](uint16_t v) {
    const uint32_t bits = uint32_t(v) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
  };
  bool same = true;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j)
      same = same && widened(short_y[size_t(i * ldy + j)]) == rounded(y[size_t(i * m + j)]);
    const std::vector<float> sums = given.summed(i);
    for (int64_t p = 0; p < k; ++p) same = same && widened(kept[size_t(i * ld_kept + p)]) == rounded(sums[size_t(p)]);
    same = same && short_y[size_t(i * ldy + m)] == 7 && kept[size_t(i * ld_kept + k)] == 7;  // padding stays
  }
  CHECK(same);
  CHECK(gw_gemm_terms_f32(n, m, terms.data(), 3, nullptr, given.lying.data(), m) == gw::bad_argument);
}

}  // namespace

TEST(rounded_products_of_all_small_sizes) {
  each_unit([] {
    for (int64_t size = 0; size <= 70; ++size) {
      check_product(size, 37, 21, false, size % 2 != 0);
      check_product(29, size, 35, size % 2 != 0, false);
      check_product(29, size, 35, size % 2 == 0, true);
      check_product(31, 18, size, size % 3 == 0, size % 5 == 0);
    }
    check_product(1500, 130, 100, false, false);
    check_product(100, 900, 70, true, true);
  });
}

TEST(rounded_contractions_of_all_small_sizes) {
  each_unit([] {
    for (int64_t size = 0; size <= 70; ++size) {
      check_contraction(size, 37, 21, size % 2 != 0);
      check_contraction(29, size, 35, size % 2 == 0);
      check_contraction(31, 18, size, false);
    }
    check_contraction(3000, 40, 33, false);
    check_contraction(300, 1100, 20, true);
    check_stored_contraction(1100, 70, 33, false);
    check_stored_contraction(600, 21, 47, true);
    check_stored_contraction(3, 5, 1, false);
    check_stored_contraction(0, 4, 2, false);
    for (const int64_t width : {16, 17, 31, 48, 49, 530}) check_stored_contraction(40, width, 20, true);
  });
}

TEST(rounded_products_of_several_terms) {
  each_unit([] {
    for (const int64_t n : {0, 1, 7, 130, 900})
      for (const int64_t k : {1, 16, 63})
        for (const int64_t m : {1, 16, 47}) {
          three_halves given(n, k, m);
          const std::vector<gw_term_f32> terms = given.terms();
          std::vector<float> y(size_t(n * m), -7.0f);
          CHECK(gw_gemm_terms_f32_bf16(n, m, terms.data(), 3, nullptr, data::pointer(y), m, 0) == 0);
          bool near = true;
          for (int64_t i = 0; i < n; ++i) {
            const std::vector<double> row = given.row(i);
            for (int64_t j = 0; j < m; ++j) {
              double want = 0;
              for (size_t p = 0; p < row.size(); ++p)
                want += row[p] * double(rounded(given.w[p * size_t(m) + size_t(j)]));
              near = near && check::close(y[size_t(i * m + j)], want, 1e-4);
            }
            const std::vector<float> sums = given.summed(i);
            for (int64_t p = 0; p < given.k[2]; ++p)
              near = near && given.kept[size_t(i * given.k[2] + p)] == sums[size_t(p)];
          }
          CHECK(near);
          check_stored_half(given, y);
        }
  });
}

TEST(rounded_contractions_with_sums_over_edges) {
  each_unit([] {
    for (const int64_t n : {0, 1, 40, 700})
      for (const int64_t m : {1, 16, 40}) {
        const int64_t k[2] = {13, 34}, table = 70;
        matrix lying(n, k[0], 1, 1), x(table, k[1], 0, 2);
        std::vector<float> g = eighths(60 * m, 3), dw(size_t((k[0] + k[1]) * m), -7.0f), sums(size_t(m), -7.0f);
        const std::vector<float> scale = eighths(n, 9);
        std::vector<int64_t> ids = data::ids<int64_t>(n, table, 4);
        const data::graph edges(n, 60, 3 * n, 5, true);
        data::graph shown = edges;
        const gw_adjacency view = shown.view();
        const gw_left_f32 lefts[2] = {{k[0], lying.at(), lying.ld, 0, nullptr, dw.data(), m, 0},
                                      {k[1], x.at(), x.ld, table, data::pointer(ids), dw.data() + k[0] * m, m, 0}};
        gw_epilogue_f32 stages{};
        stages.row_scale = scale.data();
        stages.col_sum = sums.data();
        CHECK(gw_gemm_tn_terms_f32_bf16(m, lefts, 2, &view, g.data(), m, 0, &stages) == 0);
        std::vector<double> want(dw.size(), 0.0), want_sums(size_t(m), 0.0);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < m; ++j) {
            float sum = 0;
            for (int64_t e = edges.indptr[size_t(i)]; e < edges.indptr[size_t(i + 1)]; ++e)
              sum += g[size_t(edges.indices[size_t(e)] * m + j)];
            sum *= scale[size_t(i)];
            want_sums[size_t(j)] += double(sum);
            for (int64_t p = 0; p < k[0]; ++p) want[size_t(p * m + j)] += lying(i, p) * double(rounded(sum));
            for (int64_t p = 0; p < k[1]; ++p)
              want[size_t((k[0] + p) * m + j)] += x(ids[size_t(i)], p) * double(rounded(sum));
          }
        bool near = true;
        for (size_t i = 0; i < want.size(); ++i) near = near && check::close(dw[i], want[i], 1e-4);
        for (size_t j = 0; j < want_sums.size(); ++j) near = near && check::close(sums[j], want_sums[j], 1e-4);
        CHECK(near);
      }
  });
}

TEST(rounded_products_have_the_same_bits_for_any_number_of_threads) {
  each_unit([] {
    const int64_t n = 5000, k = 50, m = 40;
    three_halves given(n, k, m);
    const std::vector<gw_term_f32> terms = given.terms();
    std::vector<float> g = data::floats(n * m, 9);
    std::vector<std::vector<float>> found;
    for (const int threads : {1, 4}) {
      gw::set_num_threads(threads);
      std::vector<float> y(size_t(n * m), 0.0f), sums(size_t(m), 0.0f), dw(size_t(k * m), 0.0f);
      gw_epilogue_f32 stages{};
      stages.col_sum = sums.data();
      CHECK(gw_gemm_terms_f32_bf16(n, m, terms.data(), 3, &stages, y.data(), m, 0) == 0);
      CHECK(gw_gemm_tn_f32_bf16(n, k, m, given.lying.data(), k, g.data(), m, nullptr, dw.data(), m, nullptr, nullptr,
                                0) == 0);
      y.insert(y.end(), sums.begin(), sums.end());
      y.insert(y.end(), dw.begin(), dw.end());
      found.push_back(y);
    }
    CHECK(std::memcmp(found[0].data(), found[1].data(), found[0].size() * sizeof(float)) == 0);
    gw::set_num_threads(4);
  });
}

TEST(rounded_products_keep_what_is_no_number_in_its_row) {
  each_unit([] {
    const int64_t n = 40, k = 20, m = 18;
    std::vector<float> x = data::floats(n * k, 1), w = data::floats(k * m, 2), y(size_t(n * m));
    x[size_t(3 * k + 5)] = std::numeric_limits<float>::quiet_NaN();
    x[size_t(7 * k + 1)] = std::numeric_limits<float>::infinity();
    CHECK(gw_gemm_nn_f32_bf16(n, k, m, x.data(), k, w.data(), m, 0, nullptr, y.data(), m, nullptr, 0) == 0);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) CHECK(std::isfinite(y[size_t(i * m + j)]) == (i != 3 && i != 7));
    CHECK(std::isnan(y[size_t(3 * m)]) && std::isinf(y[size_t(7 * m)]));
  });
}

TEST(rounded_products_that_do_not_fit_are_refused) {
  std::vector<float> x(10), y(10);
  const std::vector<int64_t> ids = {0, 9};
  int32_t used = -1;
  CHECK(gw_half_unit(3, &used) == gw::bad_argument);
  CHECK(gw_gemm_nn_f32_bf16(2, 3, 2, x.data(), 2, x.data(), 2, 0, nullptr, y.data(), 2, nullptr, 0) ==
        gw::bad_argument);
  CHECK(gw_gemm_nn_f32_bf16(2, 3, 2, x.data(), 3, x.data(), 2, 0, nullptr, y.data(), 2, ids.data(), 3) ==
        gw::out_of_range);
  CHECK(gw_gemm_tn_f32_bf16(-1, 3, 2, x.data(), 3, x.data(), 2, nullptr, y.data(), 2, nullptr, nullptr, 0) ==
        gw::bad_argument);
}
