// Streaming partitions against the search over all parts, their measures, composed samples.
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

TEST(partition_stream_finds_what_all_parts_hold) {
  for (const int64_t k : {1, 2, 7, 64, 300}) {
    for (const int64_t labels : {1, 3}) {
      data::graph graph(120, 120, 900, uint64_t(k + labels), true);
      const gw_adjacency view = graph.view();
      std::vector<int32_t> label = data::ids<int32_t>(120, labels, 9);
      std::vector<int32_t> guided(120, -1), exhaustive(120, -1);
      std::vector<int64_t> steps(3, 0);
      for (int pass = 0; pass < 3; ++pass) {
        CHECK(gw_partition_stream(&view, k, labels, label.data(), 0.7, 0, guided.data(), steps.data()) == 0);
        CHECK(steps[0] == 900 && steps[2] <= 900 + 120);
        CHECK(gw_partition_stream(&view, k, labels, label.data(), 0.7, 1, exhaustive.data(), steps.data()) == 0);
        CHECK(steps[2] == 120 * k);
        CHECK(guided == exhaustive);
      }
      CHECK(*std::min_element(guided.begin(), guided.end()) >= 0);
      CHECK(*std::max_element(guided.begin(), guided.end()) < k);

      std::vector<int64_t> halo(size_t(k), -1);
      int64_t cut = 0, expected = 0;
      CHECK(gw_partition_measure(&view, k, guided.data(), &cut, halo.data()) == 0);
      std::vector<std::set<int32_t>> outside(static_cast<size_t>(k));
      for (int64_t v = 0; v < 120; ++v)
        for (int64_t e = graph.indptr[size_t(v)]; e < graph.indptr[size_t(v) + 1]; ++e) {
          const int32_t u = graph.indices[size_t(e)];
          if (guided[size_t(u)] == guided[size_t(v)]) continue;
          ++expected;
          outside[size_t(guided[size_t(v)])].insert(u);
        }
      CHECK(cut == expected);
      for (int64_t p = 0; p < k; ++p) CHECK(halo[size_t(p)] == int64_t(outside[size_t(p)].size()));
    }
  }
}

TEST(partition_of_nothing_and_bad_sizes) {
  data::graph empty(0, 0, 0, 1);
  const gw_adjacency view = empty.view();
  std::vector<int64_t> steps(3, 0), halo(2, -1);
  int64_t cut = -1;
  CHECK(gw_partition_stream(&view, 2, 1, nullptr, 1.0, 0, nullptr, steps.data()) == 0);
  CHECK(gw_partition_measure(&view, 2, nullptr, &cut, halo.data()) == 0);
  CHECK(cut == 0 && halo[0] == 0 && halo[1] == 0);
  CHECK(gw_partition_stream(&view, 0, 1, nullptr, 1.0, 0, nullptr, steps.data()) == 1);
  data::graph wide(3, 4, 5, 1);
  const gw_adjacency not_square = wide.view();
  std::vector<int32_t> part(4, 0);
  CHECK(gw_partition_measure(&not_square, 2, part.data(), &cut, halo.data()) == 1);
}

TEST(composed_samples_point_into_the_first_graph) {
  // the outer sample has three rows with places {4, 7}, {}, {1, 0, 9}
  const std::vector<int64_t> outer_indptr{0, 2, 2, 5};
  const std::vector<uint32_t> outer_places{4, 7, 1, 0, 9};
  // the inner one takes entries 2 and 0 of row 2, nothing of row 1, entry 1 of row 0
  const std::vector<int64_t> nodes{2, 1, 0}, indptr{0, 2, 2, 3};
  const std::vector<uint32_t> places{2, 0, 1};
  std::vector<uint32_t> out(3, 99);
  std::vector<uint8_t> touched(5, 0);
  CHECK(gw_sample_compose(3, nodes.data(), indptr.data(), places.data(), outer_indptr.data(), outer_places.data(),
                          out.data(), touched.data()) == 0);
  CHECK((out == std::vector<uint32_t>{9, 1, 7}));
  CHECK((touched == std::vector<uint8_t>{0, 1, 1, 0, 1}));
  CHECK(gw_sample_compose(-1, nodes.data(), indptr.data(), places.data(), outer_indptr.data(), outer_places.data(),
                          out.data(), nullptr) == 1);
}
