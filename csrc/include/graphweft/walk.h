// Random walks over the rows of a structure: uniform or by weight, with restart, or biased by the node before
// (node2vec: Grover and Leskovec, KDD 2016).
//
// A biased step proposes an entry and accepts it with a probability that depends on where the walk comes from; after
// `patience` refusals it is drawn from the exact distribution over the row, which leaves the distribution as it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/node_draw.h"
#include "graphweft/parallel.h"
#include "graphweft/rng.h"
#include "graphweft/subset.h"

namespace gw {

struct walk_options {
  int64_t length;         // steps
  const double* running;  // by position: sums of the weights of a row up to and with it; null: uniform
  double p, q;            // weight of going back is 1 / p, of going where the node before does not lead 1 / q
  double restart;         // chance to be back at the start in each step
};

// Sums of the weights of every row, entry by entry.
template <class I>
void running_sums(const csr_view<I>& graph, const float* weights, double* out) {
  parallel_ranges(graph.num_rows, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      double total = 0;
      for (int64_t p = graph.indptr[row]; p < graph.indptr[row + 1]; ++p) out[p] = total += double(weights[p]);
    }
  });
}

template <class I>
class walker {
 public:
  // Columns ascend in every row if p or q is not 1.
  walker(const csr_view<I>& graph, const walk_options& options)
      : graph_(graph), options_(options), biased_(options.p != 1.0 || options.q != 1.0) {}

  // out [count, length + 1]: the start and what follows; -1 after a node that leads nowhere, unless walks restart.
  void run(int64_t count, const int64_t* starts, const int64_t* items, uint64_t seed, int64_t* out) const {
    for (int64_t i = 0; i < count; ++i) require_node(starts[i], graph_.num_rows, i);
    parallel_ranges(count, 64, [&](int64_t begin, int64_t end) {
      std::vector<double> sums;
      for (int64_t i = begin; i < end; ++i)
        one(starts[i], uint64_t(items == nullptr ? i : items[i]), seed, sums, out + i * (options_.length + 1));
    });
  }

 private:
  static constexpr uint64_t walk_stream = uint64_t{1} << 60, patience = 32;

  void one(int64_t start, uint64_t item, uint64_t seed, std::vector<double>& sums, int64_t* out) const {
    out[0] = start;
    int64_t before = -1;  // the node the walk came from, if the last step was along an edge
    for (int64_t step = 0; step < options_.length; ++step) {
      const auto random = [&](uint64_t draw) {
        return random_u64(seed, walk_stream | (uint64_t(step) << 16) | draw, item);
      };
      const int64_t here = out[step];
      const bool stuck = here < 0 || !leads_on(here);
      if (options_.restart > 0 && (stuck || to_unit(random(0)) < options_.restart)) {
        out[step + 1] = start;
        before = -1;
      } else if (stuck) {
        out[step + 1] = -1;
      } else {
        out[step + 1] = biased_ && before >= 0 ? next_biased(here, before, random, sums) : propose(here, random(1));
        before = here;
      }
    }
  }

  [[nodiscard]] bool leads_on(int64_t node) const {
    const int64_t end = graph_.indptr[node + 1];
    if (end == graph_.indptr[node]) return false;
    return options_.running == nullptr || options_.running[end - 1] > 0;
  }

  [[nodiscard]] int64_t propose(int64_t node, uint64_t bits) const {
    const int64_t at = graph_.indptr[node], degree = graph_.indptr[node + 1] - at;
    const int64_t place = options_.running == nullptr ? int64_t(to_below(bits, uint64_t(degree)))
                                                      : place_of(options_.running + at, degree, bits);
    return int64_t(graph_.indices[at + place]);
  }

  // Weight of a step from a node that was reached from `before` to `to`.
  [[nodiscard]] double bias(int64_t before, int64_t to) const {
    if (to == before) return 1.0 / options_.p;
    const I *first = graph_.indices + graph_.indptr[before], *last = graph_.indices + graph_.indptr[before + 1];
    return std::binary_search(first, last, I(to)) ? 1.0 : 1.0 / options_.q;
  }

  template <class Random>
  int64_t next_biased(int64_t node, int64_t before, Random&& random, std::vector<double>& sums) const {
    const double most = std::max({1.0, 1.0 / options_.p, 1.0 / options_.q});
    for (uint64_t attempt = 1; attempt <= patience; ++attempt) {
      const int64_t to = propose(node, random(2 * attempt));
      if (to_unit(random(2 * attempt + 1)) * most < bias(before, to)) return to;
    }
    const int64_t at = graph_.indptr[node], degree = graph_.indptr[node + 1] - at;
    sums.resize(size_t(degree));
    double total = 0;
    for (int64_t i = 0; i < degree; ++i) {
      const double weight =
          options_.running == nullptr ? 1.0 : options_.running[at + i] - (i > 0 ? options_.running[at + i - 1] : 0.0);
      sums[size_t(i)] = total += weight * bias(before, int64_t(graph_.indices[at + i]));
    }
    return int64_t(graph_.indices[at + place_of(sums.data(), degree, random(2 * patience + 2))]);
  }

  csr_view<I> graph_;
  walk_options options_;
  bool biased_;
};

}  // namespace gw
