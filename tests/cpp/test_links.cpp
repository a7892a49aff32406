// Negative sampling, edges left out of a batch, and sampling by relation and time: the entry points on small graphs.
#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

// Node d has in-edges from 0 .. d - 1, thrice each; edge ids are positions.
struct stairs {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> indices;
  gw_adjacency view{};

  explicit stairs(int32_t nodes) {
    for (int32_t d = 0; d < nodes; ++d) {
      for (int32_t s = 0; s < d; ++s) indices.insert(indices.end(), 3, s);
      indptr.push_back(int64_t(indices.size()));
    }
    view = {nodes, nodes, int64_t(indices.size()), indptr.data(), indices.data(), nullptr, 0};
  }
};

struct drawn {
  std::vector<int64_t> n_id, tree, indptr;
  std::vector<int32_t> indices;
  std::vector<uint32_t> offsets;
  std::vector<int64_t> run_begin;
  std::vector<int32_t> runs;  // relation and number of edges
};

drawn draw(const stairs& graph, const std::vector<int64_t>& bounds, const std::vector<int64_t>* times,
           const std::vector<int64_t>& fanouts) {
  const auto relations = int64_t(bounds.size()) - 1, hops = int64_t(fanouts.size()) / relations;
  const size_t edges = graph.indices.size();
  std::vector<uint32_t> places(edges);
  std::vector<int64_t> sorted(edges), seeds{5, 9, 9}, keys{1, 2, 3}, low(3, 10), high{40, 60, 20};
  if (times != nullptr) {
    CHECK(gw_order_by_time(&graph.view, relations, bounds.data(), times->data(), places.data(), sorted.data()) == 0);
  } else {
    seeds = {5, 9, 2};
  }
  std::vector<int64_t> run_begin(graph.indptr.size(), -1);
  CHECK(gw_relation_runs_count(&graph.view, relations, bounds.data(), run_begin.data()) == 0);
  std::vector<int32_t> runs(2 * size_t(run_begin.back()), -1);
  CHECK(gw_relation_runs(&graph.view, relations, bounds.data(), run_begin.data(), runs.data()) == 0);
  void* sampler = nullptr;
  const bool timed = times != nullptr;
  CHECK(gw_segment_sampler_new(&graph.view, relations, bounds.data(), timed ? places.data() : nullptr,
                               timed ? sorted.data() : nullptr, run_begin.data(), runs.data(), timed, 1,
                               &sampler) == 0);
  std::vector<int64_t> rows(size_t(hops), 0), counts(size_t(hops), 0), totals(3, 0);
  const std::vector<int64_t> tree{0}, relation{0}, src{3}, dst{5};
  CHECK(gw_segment_begin(sampler, 3, seeds.data(), timed ? keys.data() : nullptr, timed ? low.data() : nullptr,
                         timed ? high.data() : nullptr, hops, fanouts.data(), 0, 0, 1, 2, 3, 1, tree.data(),
                         relation.data(), src.data(), dst.data(), rows.data(), counts.data(), totals.data()) == 0);
  drawn out;
  out.n_id.assign(size_t(totals[0]), -1);
  out.tree.assign(size_t(totals[0]), -1);
  out.indptr.assign(size_t(rows.back()) + 1, -1);
  out.indices.assign(size_t(totals[1]), -1);
  out.offsets.assign(size_t(totals[1]), 0);
  out.run_begin.assign(out.indptr.size(), -1);
  out.runs.assign(2 * size_t(totals[2]), -1);
  const std::vector<void*> none(size_t(hops), nullptr);
  CHECK(gw_segment_finish(sampler, out.n_id.data(), timed ? out.tree.data() : nullptr, out.indptr.data(),
                          data::pointer(out.indices), data::pointer(out.offsets),
                          reinterpret_cast<int64_t* const*>(none.data()),
                          reinterpret_cast<int32_t* const*>(none.data()),
                          reinterpret_cast<uint32_t* const*>(none.data()), out.run_begin.data(), out.runs.data()) == 0);
  CHECK(gw_segment_sampler_free(sampler) == 0);
  for (size_t row = 0; row + 1 < out.indptr.size(); ++row) {
    int64_t p = out.indptr[row];
    for (int64_t run = out.run_begin[row]; run < out.run_begin[row + 1]; ++run)
      for (const int64_t last = p + out.runs[size_t(2 * run + 1)]; p < last; ++p) {
        const int64_t at = graph.indptr[size_t(out.n_id[row])] + int64_t(out.offsets[size_t(p)]);
        const int32_t of = out.runs[size_t(2 * run)];  // edges are numbered as they lie
        CHECK(at >= bounds[size_t(of)] && at < bounds[size_t(of) + 1]);
      }
    CHECK(p == out.indptr[row + 1]);
  }
  for (size_t row = 0; row + 1 < out.indptr.size(); ++row)
    for (int64_t p = out.indptr[row]; p < out.indptr[row + 1]; ++p) {
      const int64_t at = graph.indptr[size_t(out.n_id[row])] + int64_t(out.offsets[size_t(p)]);
      const auto source = size_t(out.indices[size_t(p)]);
      CHECK(at < graph.indptr[size_t(out.n_id[row]) + 1]);
      CHECK(out.n_id[source] == graph.indices[size_t(at)]);
      if (timed) {
        const auto owner = size_t(out.tree[row]);
        CHECK(out.tree[source] == out.tree[row]);
        CHECK((*times)[size_t(at)] >= low[owner] && (*times)[size_t(at)] <= high[owner]);
      } else {
        CHECK(!(out.n_id[row] == 5 && out.n_id[source] == 3 && at < bounds[1]));
      }
    }
  return out;
}

}  // namespace

TEST(negatives_are_no_edges) {
  const stairs graph(40);
  const std::vector<int64_t> ranges{0, 40, 0, 40}, keys{3, 1, 4, 1, 5};
  std::vector<int64_t> src(500, -1), dst(500, -1), heads{39, 0, 7, 7, 20}, tails(500, -1);
  CHECK(gw_negative_pairs(&graph.view, ranges.data(), 0, 5, keys.data(), 100, 1, 2, 3, src.data(), dst.data()) == 0);
  for (size_t i = 0; i < src.size(); ++i) CHECK(src[i] > dst[i]);
  CHECK(std::equal(src.begin() + 100, src.begin() + 200, src.begin() + 300));  // key 1, twice
  heads[1] = 1;
  CHECK(gw_negative_tails(&graph.view, ranges.data(), 0, 5, keys.data(), 100, 1, 2, 3, heads.data(), tails.data()) ==
        0);
  for (size_t i = 0; i < tails.size(); ++i) CHECK(tails[i] >= 0 && tails[i] < heads[i / 100]);
  heads[1] = 0;  // it has an edge to every other node
  CHECK(gw_negative_tails(&graph.view, ranges.data(), 0, 5, keys.data(), 100, 1, 2, 3, heads.data(), tails.data()) ==
        1);
  std::vector<uint8_t> mask(25, 9), found(5, 9);
  CHECK(gw_negative_mask(&graph.view, ranges.data(), 0, 5, heads.data(), 5, keys.data(), mask.data()) == 0);
  for (size_t i = 0; i < 25; ++i) CHECK((mask[i] == 1) == (heads[i / 5] > keys[i % 5]));
  CHECK(gw_has_edges(&graph.view, 5, heads.data(), keys.data(), found.data()) == 0);
  for (size_t i = 0; i < 5; ++i) CHECK((found[i] == 1) == (heads[i] < keys[i]));
  heads[2] = 40;
  CHECK(gw_has_edges(&graph.view, 5, heads.data(), keys.data(), found.data()) == 2);
}

TEST(segments_hold_to_relation_and_time) {
  const stairs graph(40);
  const auto edges = int64_t(graph.indices.size());
  std::vector<int64_t> times;
  for (int64_t p = 0; p < edges; ++p) times.push_back(p * 37 % 101);
  for (const std::vector<int64_t>& fanouts : {std::vector<int64_t>{4, 3}, {-1, 2}, {2, 40}}) {
    draw(graph, {0, edges}, nullptr, fanouts);
    const drawn one = draw(graph, {0, edges}, &times, fanouts), again = draw(graph, {0, edges}, &times, fanouts);
    CHECK(one.n_id == again.n_id && one.indices == again.indices && one.offsets == again.offsets);
  }
  const std::vector<int64_t> bounds{0, edges / 3, edges / 3, edges};
  draw(graph, bounds, nullptr, {2, 1, 3, 4, 1, 0});
  draw(graph, bounds, &times, {2, 1, 3, 4, 1, 0});
}

TEST(left_out_edges_stay_out) {
  const stairs graph(40);
  void* sampler = nullptr;
  CHECK(gw_sampler_new(&graph.view, nullptr, 1, &sampler) == 0);
  const std::vector<int64_t> seeds{6, 3}, fanouts{-1}, src{2, 4, 0}, dst{6, 6, 3};
  for (const bool leave : {true, false}) {
    if (leave) CHECK(gw_sampler_exclude(sampler, 3, src.data(), dst.data()) == 0);
    std::vector<int64_t> rows(1), edges(1), totals(2);
    CHECK(gw_sample_begin(sampler, 2, seeds.data(), 1, fanouts.data(), 0, 1, 2, 3, rows.data(), edges.data(),
                          totals.data()) == 0);
    CHECK(edges[0] == (leave ? 18 - 6 + 9 - 3 : 27));
  }
  CHECK(gw_sampler_free(sampler) == 0);
}
