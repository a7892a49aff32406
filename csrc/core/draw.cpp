// Draws of entries, nodes and items: entry points over row_sample.h, node_draw.h and walk.h.
#include "graphweft/abi.h"
#include "graphweft/node_draw.h"
#include "graphweft/rng.h"
#include "graphweft/row_sample.h"
#include "graphweft/walk.h"

namespace gw {
namespace {

void check_k(int64_t k, int32_t replace) {
  require(k >= -1 && k < int64_t{1} << 31 && !(k < 0 && replace), "draw: expected k >= 0, or -1 for all");
}

template <class I>
void walk(const gw_adjacency& a, const walk_options& options, int64_t count, const int64_t* starts,
          const int64_t* items, uint64_t seed, int64_t* out) {
  walker<I>(csr_view<I>(a), options).run(count, starts, items, seed, out);
}

}  // namespace
}  // namespace gw

extern "C" {

// How many entries every row draws: indptr [num_rows + 1]. k < 0: all of positive weight. weights by position, or null.
GW_API int gw_row_sample_sizes(const gw_adjacency* a, const float* weights, int64_t k, int32_t replace,
                               int64_t* indptr) {
  return gw::guarded([&] {
    gw::check_k(k, replace);
    a->wide ? gw::row_sampler<int64_t>(gw::csr_view<int64_t>(*a), weights, k, replace != 0).sizes(indptr)
            : gw::row_sampler<int32_t>(gw::csr_view<int32_t>(*a), weights, k, replace != 0).sizes(indptr);
  });
}

// The draws: positions of entries, ascending in every row, and the factors of unbiased sums. nodes [num_rows] keys the
// rows; null: their numbers.
GW_API int gw_row_sample(const gw_adjacency* a, const float* weights, int64_t k, int32_t replace, const int64_t* nodes,
                         uint64_t seed, uint64_t epoch, uint64_t stage, uint32_t hop, const int64_t* indptr,
                         int64_t* positions, float* factors) {
  return gw::guarded([&] {
    gw::check_k(k, replace);
    const gw::draw_key key{gw::sample_seed(seed, epoch, stage), hop};
    const bool again = replace != 0;
    a->wide ? gw::row_sampler<int64_t>(gw::csr_view<int64_t>(*a), weights, k, again)
                  .draw(key, nodes, indptr, positions, factors)
            : gw::row_sampler<int32_t>(gw::csr_view<int32_t>(*a), weights, k, again)
                  .draw(key, nodes, indptr, positions, factors);
  });
}

// k of n nodes: places [max(n, k)] of the drawn ones, each once, and their factors. weights [n], or null; k < 0: all.
GW_API int gw_draw_nodes(int64_t n, const int64_t* ids, const double* weights, int64_t k, int32_t replace,
                         uint64_t seed, uint64_t epoch, uint64_t stage, uint32_t hop, int64_t* places, double* factors,
                         int64_t* count) {
  return gw::guarded([&] {
    gw::check_k(k, replace);
    *count =
        gw::draw_nodes(n, ids, weights, k, replace != 0, gw::sample_seed(seed, epoch, stage), hop, places, factors);
  });
}

// A place in [0, n) for each item, by the running sums of weights, or uniformly where they are null.
GW_API int gw_draw_items(int64_t count, const int64_t* items, int64_t n, const double* running, uint64_t seed,
                         uint64_t epoch, uint64_t stage, int64_t* out) {
  return gw::guarded([&] {
    gw::require(count >= 0 && (count == 0 || n > 0), "gw_draw_items: nothing to draw from");
    gw::draw_items(count, items, n, running, gw::sample_seed(seed, epoch, stage), out);
  });
}

// Sums of weights [num_edges] within each row, up to and with every entry.
GW_API int gw_running_sums(const gw_adjacency* a, const float* weights, double* out) {
  return gw::guarded([&] {
    a->wide ? gw::running_sums(gw::csr_view<int64_t>(*a), weights, out)
            : gw::running_sums(gw::csr_view<int32_t>(*a), weights, out);
  });
}

// Walks of `length` steps over rows, out [count, length + 1]. items [count] keys the walks; null: their numbers.
// running [num_edges]: sums of weights within each row, or null. Columns must ascend if p or q is not 1.
GW_API int gw_random_walk(const gw_adjacency* a, int64_t count, const int64_t* starts, const int64_t* items,
                          int64_t length, const double* running, double p, double q, double restart, uint64_t seed,
                          uint64_t epoch, uint64_t stage, int64_t* out) {
  return gw::guarded([&] {
    gw::require(count >= 0 && length >= 0 && length < int64_t{1} << 31, "gw_random_walk: negative size");
    gw::require(p > 0 && q > 0 && restart >= 0 && restart <= 1, "gw_random_walk: p, q or restart out of range");
    gw::checked_mul(count, length + 1);
    const gw::walk_options options{length, running, p, q, restart};
    const uint64_t key = gw::sample_seed(seed, epoch, stage);
    a->wide ? gw::walk<int64_t>(*a, options, count, starts, items, key, out)
            : gw::walk<int32_t>(*a, options, count, starts, items, key, out);
  });
}

// A permutation of [0, n) by (seed, epoch): Fisher and Yates, the step of each place drawn by its number.
GW_API int gw_permutation(int64_t n, uint64_t seed, uint64_t epoch, int64_t* out) {
  return gw::guarded([&] {
    for (int64_t i = 0; i < n; ++i) out[i] = i;
    for (int64_t i = n - 1; i > 0; --i)
      std::swap(out[i], out[gw::to_below(gw::random_u64(seed, epoch, uint64_t(i)), uint64_t(i) + 1)]);
  });
}
}
