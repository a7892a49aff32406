// What `train --self-test` does of attention: forward, backward and products by head against plain loops.
#include "attention.h"

#include "graph.h"
#include "self_test.h"

namespace program {

namespace {

constexpr int64_t nodes = 200, heads = 3, channels = 7, out = 5;

void test_attention() {
  Numbers<int32_t> src(2500), dst(2500);
  for (size_t e = 0; e < src.size(); ++e) {
    src[e] = int32_t(draws() % nodes);
    dst[e] = int32_t(e < 700 ? 7 : draws() % (nodes - 5));  // one node with many, some without
  }
  const Graph graph = Graph::from_edges(src, dst, nodes);
  const gw_adjacency edges = graph.in_edges_in_order(), back = graph.out_edges_in_order();
  const auto* ids = static_cast<const int32_t*>(edges.indices);
  const Heads settings{heads, channels, 0.2, 0.0, 0, 0};
  Table x(nodes, heads * channels), a(nodes, heads), b(nodes, heads), dy(nodes, heads * channels);
  Table y(nodes, heads * channels, false), stats(nodes, heads * (3 + channels), false), room(nodes, 4 * heads, false);
  Attention<Score::add>::forward(edges, settings, x.matrix(), a.matrix(), b.matrix(), y.matrix(), stats.numbers.data());
  finish();
  std::vector<double> exact(size_t(nodes * heads * channels), 0.0), dx = exact, da(size_t(nodes * heads), 0.0), db = da;
  for (int64_t i = 0; i < nodes; ++i)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t begin = edges.indptr[i], end = edges.indptr[i + 1];
      std::vector<double> share, slope;
      double total = 0.0, mean = 0.0;
      for (int64_t p = begin; p < end; ++p) {
        const double z = a.at(ids[p], h) + b.at(i, h);
        share.push_back(std::exp(z > 0.0 ? z : 0.2 * z));
        total += share.back();
      }
      for (int64_t p = begin; p < end; ++p) {
        double with = 0.0;
        share[size_t(p - begin)] /= total;
        for (int64_t c = h * channels; c < (h + 1) * channels; ++c) {
          exact[size_t(i * heads * channels + c)] += share[size_t(p - begin)] * x.at(ids[p], c);
          dx[size_t(ids[p] * heads * channels + c)] += share[size_t(p - begin)] * dy.at(i, c);
          with += x.at(ids[p], c) * dy.at(i, c);
        }
        slope.push_back(with);
        mean += share[size_t(p - begin)] * with;
      }
      for (int64_t p = begin; p < end; ++p) {
        const bool upper = a.at(ids[p], h) + b.at(i, h) > 0.0;
        const double d = share[size_t(p - begin)] * (slope[size_t(p - begin)] - mean) * (upper ? 1.0 : 0.2);
        da[size_t(ids[p] * heads + h)] += d;
        db[size_t(i * heads + h)] += d;
      }
    }
  const auto wanted = [](const std::vector<double>& from, int64_t cols) {
    return [&from, cols](int64_t r, int64_t c) { return from[size_t(r * cols + c)]; };
  };
  compare("attention", y, wanted(exact, heads * channels));
  Table found_x(nodes, heads * channels, false), found_a(nodes, heads, false), found_b(nodes, heads, false);
  const Attended given{x.matrix(), a.matrix(), b.matrix(), y.matrix(), stats.numbers.data(), dy.matrix()};
  Attention<Score::add>::backward(edges, back, settings, given, found_x.matrix(), found_a.matrix(), found_b.matrix(),
                                  room.numbers.data());
  compare("its values' gradient", found_x, wanted(dx, heads * channels));
  compare("its sources'", found_a, wanted(da, heads));
  compare("its destinations'", found_b, wanted(db, heads));
}

void test_heads() {
  Table x(nodes, heads * channels), g(nodes, heads * out), a(heads, channels), w(channels, heads * out);
  Table dots(nodes, heads, false), sums(heads, channels, false), y(nodes, heads * out, false),
      dw(channels, heads * out, false);
  head_dots(x.matrix(), a.numbers.data(), channels, dots.matrix());
  compare("head_dots", dots, [&](int64_t r, int64_t h) {
    double total = 0.0;
    for (int64_t c = 0; c < channels; ++c) total += x.at(r, h * channels + c) * a.at(h, c);
    return total;
  });
  head_sums(dots.matrix(), x.matrix(), channels, sums.numbers.data());
  compare("head_sums", sums, [&](int64_t h, int64_t c) {
    double total = 0.0;
    for (int64_t r = 0; r < nodes; ++r) total += dots.at(r, h) * x.at(r, h * channels + c);
    return total;
  });
  head_matmul(x.matrix(), w.matrix(), heads, Weight::as_stored, y.matrix());
  compare("head_matmul", y, [&](int64_t r, int64_t k) {
    double total = 0.0;
    for (int64_t c = 0; c < channels; ++c) total += x.at(r, k / out * channels + c) * w.at(c, k);
    return total;
  });
  head_outer(x.matrix(), g.matrix(), heads, dw.matrix(), nullptr);
  compare("head_outer", dw, [&](int64_t c, int64_t k) {
    double total = 0.0;
    for (int64_t r = 0; r < nodes; ++r) total += x.at(r, k / out * channels + c) * g.at(r, k);
    return total;
  });

  Table over_heads(nodes, channels, false), repeated(nodes, heads * channels, false);
  sum_heads(x.matrix(), heads, over_heads.matrix());
  compare("sum_heads", over_heads, [&](int64_t r, int64_t c) {
    double total = 0.0;
    for (int64_t h = 0; h < heads; ++h) total += x.at(r, h * channels + c);
    return total;
  });
  repeat_heads(over_heads.matrix(), heads, repeated.matrix());
  compare("repeat_heads", repeated, [&](int64_t r, int64_t k) { return over_heads.at(r, k % channels); });
}

[[maybe_unused]] const bool added = [] {
  more_tests().push_back(test_attention);
  more_tests().push_back(test_heads);
  return true;
}();

}  // namespace

}  // namespace program
