// What `train --self-test` does: every kernel against plain loops in double precision.
#include "self_test.h"

#include "graph.h"

namespace program {

namespace {

constexpr int64_t nodes = 300, width = 40, out = 17;

void test_edges() {
  Numbers<int32_t> src(4000), dst(4000);
  for (size_t e = 0; e < src.size(); ++e) {
    src[e] = int32_t(draws() % nodes);
    dst[e] = int32_t(e < 1000 ? 7 : draws() % (nodes - 5));  // one node with many, some without
  }
  const Graph graph = Graph::from_edges(src, dst, nodes);
  const gw_adjacency edges = graph.in_edges_in_order();
  const auto* ids = static_cast<const int32_t*>(edges.indices);
  Table x(nodes, width), values(1, int64_t(src.size())), factor(nodes, 1), y(nodes, width, false);
  const auto sum = [&](int64_t row, int64_t col, const float* by) {
    double total = 0.0;
    for (int64_t p = edges.indptr[row]; p < edges.indptr[row + 1]; ++p)
      total += (by ? double(by[p]) : 1.0) * x.at(ids[p], col) * (by ? 1.0 : factor.at(ids[p], 0));
    return total;
  };
  spmm(edges, x.matrix(), y.matrix(), Epilogue().relu(), Reading().self(1.0).src_scale(factor.numbers.data()));
  compare("spmm", y,
          [&](int64_t r, int64_t c) { return std::max(sum(r, c, nullptr) + x.at(r, c) * factor.at(r, 0), 0.0); });
  sparse_matmul(edges, values.numbers.data(), x.matrix(), y.matrix());
  compare("sparse_matmul", y, [&](int64_t r, int64_t c) { return sum(r, c, values.numbers.data()); });

  const auto* numbers = static_cast<const int32_t*>(edges.edge_ids);
  Table eps(1, 1), totals(nodes, 1, false), product(1, 1, false);
  const auto weighted = [&](int64_t row, int64_t col) {
    double total = 0.0;
    for (int64_t p = edges.indptr[row]; p < edges.indptr[row + 1]; ++p)
      total += values.at(0, numbers[p]) * (col < 0 ? 1.0 : x.at(ids[p], col));
    return total;
  };
  spmm(edges, x.matrix(), y.matrix(), Epilogue(),
       Reading().self(1.0, eps.numbers.data()).weights(values.numbers.data()));
  compare("spmm with weights", y, [&](int64_t r, int64_t c) { return weighted(r, c) + eps.at(0, 0) * x.at(r, c); });
  sum_weights(edges, values.numbers.data(), totals.numbers.data());
  compare("sum_weights", totals, [&](int64_t r, int64_t) { return weighted(r, -1); });
  dot(x.matrix(), y.matrix(), product.numbers.data());
  compare("dot", product, [&](int64_t, int64_t) {
    double total = 0.0;
    for (int64_t r = 0; r < nodes; ++r)
      for (int64_t c = 0; c < width; ++c) total += x.at(r, c) * y.at(r, c);
    return total;
  });

  Table scattered(nodes, width, false);
  implicit_transpose(edges, values.numbers.data(), x.matrix(), scattered.matrix());
  std::vector<double> exact(size_t(nodes * width), 0.0);
  for (int64_t r = 0; r < nodes; ++r)
    for (int64_t p = edges.indptr[r]; p < edges.indptr[r + 1]; ++p)
      for (int64_t c = 0; c < width; ++c) exact[size_t(ids[p] * width + c)] += values.at(0, p) * x.at(r, c);
  compare("implicit_transpose", scattered, [&](int64_t r, int64_t c) { return exact[size_t(r * width + c)]; });

  Numbers<int32_t> from(size_t(nodes * width));
  spmm_max(edges, x.matrix(), y.matrix(), from.data(), Extremum::maximum);
  compare("spmm_max", y, [&](int64_t r, int64_t c) {
    double best = edges.indptr[r] == edges.indptr[r + 1] ? 0.0 : -INFINITY;
    for (int64_t p = edges.indptr[r]; p < edges.indptr[r + 1]; ++p) best = std::max(best, x.at(ids[p], c));
    return best;
  });
  Table routed(nodes, width, false);
  spmm_max_grad(graph.out_edges_side_by_side(), from.data(), x.matrix(), routed.matrix());
  std::fill(exact.begin(), exact.end(), 0.0);
  for (int64_t i = 0; i < nodes * width; ++i)
    if (from[size_t(i)] >= 0) exact[size_t(from[size_t(i)] * width + i % width)] += double(x.numbers[size_t(i)]);
  compare("spmm_max_grad", routed, [&](int64_t r, int64_t c) { return exact[size_t(r * width + c)]; });
}

void test_products() {
  Table x(nodes, width), w(width, out), turned_w(out, width), factor(nodes, 1), bias(1, out);
  Table z(nodes, out, false), dw(width, out, false), sums(1, out, false);
  const auto product = [&](int64_t r, int64_t c) {
    double total = 0.0;
    for (int64_t k = 0; k < width; ++k) total += x.at(r, k) * w.at(k, c);
    return total;
  };
  matmul(x.matrix(), w.matrix(), Weight::as_stored, z.matrix(),
         Epilogue().bias(bias.numbers.data()).col_sum(sums.numbers.data()).post_scale(factor.numbers.data()));
  compare("matmul", z, [&](int64_t r, int64_t c) { return (product(r, c) + bias.at(0, c)) * factor.at(r, 0); });
  compare("column sums", sums, [&](int64_t, int64_t c) {
    double total = 0.0;
    for (int64_t r = 0; r < nodes; ++r) total += product(r, c) + bias.at(0, c);
    return total;
  });
  for (int64_t k = 0; k < width; ++k)
    for (int64_t c = 0; c < out; ++c) turned_w.numbers[size_t(c * width + k)] = w.numbers[size_t(k * out + c)];
  matmul_terms({{x.matrix(), w.matrix(), Weight::as_stored}, {x.matrix(), turned_w.matrix(), Weight::transposed}},
               z.matrix());
  compare("matmul_terms", z, [&](int64_t r, int64_t c) { return 2.0 * product(r, c); });
  contract(x.matrix(), z.matrix(), dw.matrix());
  compare("contract", dw, [&](int64_t k, int64_t c) {
    double total = 0.0;
    for (int64_t r = 0; r < nodes; ++r) total += x.at(r, k) * z.at(r, c);
    return total;
  });
}

void test_loss() {
  Numbers<int64_t> labels(static_cast<size_t>(nodes)), listed;
  for (int64_t r = 0; r < nodes; ++r) {
    labels[size_t(r)] = r % out;
    if (r % 3 == 0) listed.push_back(r);
  }
  Table logits(nodes, out), gradient(nodes, out, false), loss(1, 1, false);
  const Loss found =
      cross_entropy(logits.matrix(), labels.data(), {listed.data(), int64_t(listed.size())}, gradient.numbers.data());
  double losses = 0.0;
  const auto share = [&](int64_t r, int64_t c) {
    double total = 0.0;
    for (int64_t k = 0; k < out; ++k) total += std::exp(logits.at(r, k));
    return std::exp(logits.at(r, c)) / total;
  };
  for (const int64_t r : listed) losses -= std::log(share(r, r % out));
  loss.numbers[0] = found.mean();
  compare("cross_entropy", loss, [&](int64_t, int64_t) { return losses / double(listed.size()); });
  compare("its gradient", gradient, [&](int64_t r, int64_t c) {
    return r % 3 ? 0.0 : (share(r, c) - (c == r % out ? 1.0 : 0.0)) / double(listed.size());
  });
}

}  // namespace

int self_test() {
  failures = 0;
  test_edges();
  test_products();
  test_loss();
  for (void (*test)() : more_tests()) test();
  return failures;
}

}  // namespace program
