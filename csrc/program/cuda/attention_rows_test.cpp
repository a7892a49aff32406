// What `train --self-test` does of attention that is scored by products of rows: forward and backward against plain
// loops.
#include "attention.h"
#include "graph.h"
#include "self_test.h"

namespace program {

namespace {

constexpr int64_t nodes = 150, heads = 3, channels = 5, width = heads * channels, count = 1800;

// Sums in double, all by element: of y, and of the gradients by x, a and b.
struct Exact {
  std::vector<double> y = std::vector<double>(size_t(nodes * width), 0.0), dx = y, da = y, db = y;
};

double leaky(double z, double by) { return z > 0.0 ? z : z * by; }

template <Score S>
Exact plain(const gw_adjacency& edges, double by, const Table& x, const Table& a, const Table& b, const Table& dy) {
  Exact exact;
  const auto* ids = static_cast<const int32_t*>(edges.indices);
  const auto column = [](int64_t row, int64_t col) { return size_t(row * width + col); };
  for (int64_t i = 0; i < nodes; ++i)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t begin = edges.indptr[i], end = edges.indptr[i + 1], first = h * channels, last = first + channels;
      std::vector<double> share, with;
      double total = 0.0, mean = 0.0;
      for (int64_t p = begin; p < end; ++p) {
        double score = 0.0, product = 0.0;
        for (int64_t c = first; c < last; ++c) {
          score += S == Score::add2 ? b.at(0, c) * leaky(x.at(ids[p], c) + a.at(i, c), by)
                                    : by * a.at(ids[p], c) * b.at(i, c);
          product += x.at(ids[p], c) * dy.at(i, c);
        }
        share.push_back(std::exp(score));
        with.push_back(product);
        total += share.back();
      }
      for (size_t k = 0; k < share.size(); ++k) mean += (share[k] /= total) * with[k];
      for (int64_t p = begin; p < end; ++p) {
        const double weight = share[size_t(p - begin)], slope = weight * (with[size_t(p - begin)] - mean);
        for (int64_t c = first; c < last; ++c) {
          exact.y[column(i, c)] += weight * x.at(ids[p], c);
          exact.dx[column(ids[p], c)] += weight * dy.at(i, c);
          if (S == Score::dot) {
            exact.da[column(ids[p], c)] += slope * by * b.at(i, c);
            exact.db[column(i, c)] += slope * by * a.at(ids[p], c);
            continue;
          }
          const double z = x.at(ids[p], c) + a.at(i, c), back = slope * b.at(0, c) * (z > 0.0 ? 1.0 : by);
          exact.dx[column(ids[p], c)] += back;
          exact.da[column(i, c)] += back;
          exact.db[column(0, c)] += slope * leaky(z, by);
        }
      }
    }
  return exact;
}

template <Score S>
void test_score(const char* name) {
  Numbers<int32_t> src(count), dst(count);
  for (size_t e = 0; e < src.size(); ++e) {
    src[e] = int32_t(draws() % nodes);
    dst[e] = int32_t(e < 500 ? 7 : draws() % (nodes - 5));  // one node with many, some without
  }
  const Graph graph = Graph::from_edges(src, dst, nodes);
  const gw_adjacency edges = graph.in_edges_in_order(), back = graph.out_edges_in_order();
  const int64_t last = S == Score::add2 ? 1 : nodes;  // rows of b
  const Heads settings{heads, channels, S == Score::add2 ? 0.2 : 0.4, 0.0, 0, 0};
  Table x(nodes, width), a(nodes, width), b(last, width), dy(nodes, width), y(nodes, width, false);
  Table stats(nodes, 2 * heads, false), room(nodes, 4 * heads, false), slopes(1, 2 * count * heads + nodes * width);
  Attention<S>::forward(edges, settings, x.matrix(), a.matrix(), b.matrix(), y.matrix(), stats.numbers.data());
  finish();
  const Exact exact = plain<S>(edges, settings.by, x, a, b, dy);
  const auto wanted = [](const std::vector<double>& from) {
    return [&from](int64_t r, int64_t c) { return from[size_t(r * width + c)]; };
  };
  compare(name, y, wanted(exact.y));
  Table dx(nodes, width, false), da(nodes, width, false), db(last, width, false);
  const Attended given{x.matrix(), a.matrix(), b.matrix(), y.matrix(), stats.numbers.data(), dy.matrix()};
  Attention<S>::backward(edges, back, settings, given, dx.matrix(), da.matrix(), db.matrix(), room.numbers.data(),
                         slopes.numbers.data());
  compare("its values' gradient", dx, wanted(exact.dx));
  compare("its first operand's", da, wanted(exact.da));
  compare("its second operand's", db, wanted(exact.db));
}

[[maybe_unused]] const bool added = [] {
  more_tests().push_back([] { test_score<Score::add2>("attention of sums"); });
  more_tests().push_back([] { test_score<Score::dot>("attention of products"); });
  return true;
}();

}  // namespace

}  // namespace program
