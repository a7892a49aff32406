// Draws per row and per layer, walks, induced and separate subgraphs: sizes, bounds, the same bits for any number of
// threads. What is drawn is compared with slow samplers and exact chances by the tests in Python.
#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

struct edges_of {
  std::vector<int64_t> nodes, owners, indptr;
  std::vector<int32_t> indices;
  std::vector<uint32_t> offsets;

  bool operator==(const edges_of& other) const {
    return nodes == other.nodes && owners == other.owners && indptr == other.indptr && indices == other.indices &&
           offsets == other.offsets;
  }
};

// Every entry is one of its row's, and leads to the node of its number.
void check_entries(const data::graph& g, const edges_of& found) {
  for (size_t row = 0; row + 1 < found.indptr.size(); ++row)
    for (int64_t p = found.indptr[row]; p < found.indptr[row + 1]; ++p) {
      const int64_t node = found.nodes[row], at = g.indptr[size_t(node)] + int64_t(found.offsets[size_t(p)]);
      CHECK(at < g.indptr[size_t(node + 1)]);
      CHECK(found.nodes[size_t(found.indices[size_t(p)])] == g.indices[size_t(at)]);
    }
}

edges_of egos(const gw_adjacency& view, std::vector<int64_t> roots, std::vector<int64_t> fanouts, bool replace,
              const float* weights, bool ascending, bool dense) {
  void* handle = nullptr;
  int64_t sizes[2] = {0, 0};
  CHECK(gw_ego_new(&view, weights, ascending, dense, &handle) == 0);
  CHECK(gw_ego_draw(handle, int64_t(roots.size()), data::pointer(roots), int64_t(fanouts.size()), fanouts.data(),
                    replace, 1, 2, 3, sizes) == 0);
  edges_of out;
  out.nodes.resize(size_t(sizes[0]));
  out.owners.resize(size_t(sizes[0]));
  out.indptr.resize(size_t(sizes[0]) + 1);
  out.indices.resize(size_t(sizes[1]));
  out.offsets.resize(size_t(sizes[1]));
  CHECK(gw_ego_write(handle, data::pointer(out.nodes), data::pointer(out.owners), out.indptr.data(),
                     data::pointer(out.indices), data::pointer(out.offsets)) == 0);
  CHECK(gw_ego_free(handle) == 0);
  return out;
}

edges_of slice(const gw_adjacency& view, std::vector<int64_t> nodes, bool dense) {
  void* handle = nullptr;
  int64_t count = 0;
  CHECK(gw_subset_new(&view, dense, &handle) == 0);
  CHECK(gw_subset_slice(handle, int64_t(nodes.size()), data::pointer(nodes), int64_t(nodes.size()),
                        data::pointer(nodes), nullptr, &count) == 0);
  edges_of out;
  out.indptr.resize(nodes.size() + 1);
  out.indices.resize(size_t(count));
  out.offsets.resize(size_t(count));
  CHECK(gw_subset_write_slice(handle, out.indptr.data(), data::pointer(out.indices), data::pointer(out.offsets)) == 0);
  CHECK(gw_subset_free(handle) == 0);
  out.nodes = std::move(nodes);
  return out;
}

std::vector<int64_t> every_third(int64_t nodes) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < nodes; i += 3) out.push_back(i);
  return out;
}

}  // namespace

TEST(rows_draw_what_they_have) {
  for (const auto& [rows, cols, edges] :
       {std::tuple<int64_t, int64_t, int64_t>{0, 0, 0}, {3, 5, 0}, {9, 4, 60}, {300, 40, 9000}})
    for (const bool weighted : {false, true})
      for (const bool replace : {false, true})
        for (const int64_t k : {-1, 0, 1, 7, 70}) {
          if (replace && k < 0) continue;
          data::graph g(rows, cols, edges, 4, rows > 3);
          std::vector<float> weights = data::floats(edges, 5);
          for (float& w : weights) w = std::max(w, 0.0f);
          const gw_adjacency view = g.view();
          const float* const given = weighted ? data::pointer(weights) : nullptr;
          std::vector<int64_t> indptr(size_t(rows) + 1, -1);
          CHECK(gw_row_sample_sizes(&view, given, k, replace, indptr.data()) == 0);
          std::vector<int64_t> positions(size_t(indptr.back()), -1);
          std::vector<float> factors(positions.size(), 0);
          CHECK(gw_row_sample(&view, given, k, replace, nullptr, 1, 2, 3, 0, indptr.data(), data::pointer(positions),
                              data::pointer(factors)) == 0);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t p = indptr[size_t(row)]; p < indptr[size_t(row + 1)]; ++p) {
              CHECK(positions[size_t(p)] >= g.indptr[size_t(row)] && positions[size_t(p)] < g.indptr[size_t(row + 1)]);
              CHECK(given == nullptr || weights[size_t(positions[size_t(p)])] > 0);
              CHECK(factors[size_t(p)] > 0);
              CHECK(p == indptr[size_t(row)] || positions[size_t(p)] >= positions[size_t(p) - 1] + (replace ? 0 : 1));
            }
        }
}

TEST(layers_draw_each_node_once) {
  std::vector<int64_t> ids = every_third(9000);
  std::vector<double> weights(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) weights[i] = double(i % 5);
  for (const bool weighted : {false, true})
    for (const bool replace : {false, true})
      for (const int64_t k : {0, 1, 500, 2999, 4000}) {
        std::vector<std::vector<int64_t>> found;
        for (const int32_t threads : {1, 4}) {
          CHECK(gw_thread_width(threads) == 0);
          const size_t room = std::max(ids.size(), size_t(k));
          std::vector<int64_t> places(room, -1);
          std::vector<double> factors(room, 0);
          int64_t count = 0;
          CHECK(gw_draw_nodes(int64_t(ids.size()), ids.data(), weighted ? weights.data() : nullptr, k, replace, 1, 2, 3,
                              0, places.data(), factors.data(), &count) == 0);
          places.resize(size_t(count));
          CHECK(count <= k && std::is_sorted(places.begin(), places.end()));
          CHECK(std::adjacent_find(places.begin(), places.end()) == places.end());
          for (const int64_t place : places) CHECK(!weighted || weights[size_t(place)] > 0);
          found.push_back(places);
        }
        CHECK(found[0] == found[1]);
      }
  CHECK(gw_thread_width(4) == 0);
}

TEST(walks_follow_edges) {
  data::graph g(200, 200, 3000, 6);
  for (int64_t row = 0; row < 200; ++row)
    std::sort(g.indices.begin() + g.indptr[size_t(row)], g.indices.begin() + g.indptr[size_t(row + 1)]);
  const gw_adjacency view = g.view();
  std::vector<float> weights(3000, 0.5f);
  std::vector<double> running(3000, 0);
  CHECK(gw_running_sums(&view, weights.data(), running.data()) == 0);
  const std::vector<int64_t> starts = every_third(200);
  for (const double p : {1.0, 0.001, 50.0})
    for (const double restart : {0.0, 0.2})
      for (const double* const sums :
           {static_cast<const double*>(nullptr), static_cast<const double*>(running.data())}) {
        std::vector<int64_t> out(starts.size() * 7, -2);
        CHECK(gw_random_walk(&view, int64_t(starts.size()), starts.data(), nullptr, 6, sums, p, 2.0, restart, 1, 2, 3,
                             out.data()) == 0);
        for (size_t i = 0; i < starts.size(); ++i)
          for (size_t step = 0; step < 6; ++step) {
            const int64_t from = out[i * 7 + step], to = out[i * 7 + step + 1];
            if (from < 0) CHECK(to == (restart > 0 ? starts[i] : -1));
            if (from < 0 || to < 0 || (restart > 0 && to == starts[i])) continue;
            const auto first = g.indices.begin() + g.indptr[size_t(from)];
            CHECK(std::binary_search(first, g.indices.begin() + g.indptr[size_t(from + 1)], int32_t(to)));
          }
      }
  const std::vector<int64_t> bad = {200};
  std::vector<int64_t> out(2, 0);
  CHECK(gw_random_walk(&view, 1, bad.data(), nullptr, 1, nullptr, 1, 1, 0, 1, 2, 3, out.data()) == 2);
}

TEST(induced_and_separate_subgraphs_are_those_of_the_graph) {
  for (const auto& [nodes, edges] : {std::pair<int64_t, int64_t>{1, 0}, {1, 4}, {30, 200}, {900, 30000}}) {
    data::graph g(nodes, nodes, edges, 8, nodes > 3);
    for (int64_t row = 0; row < nodes; ++row)
      std::sort(g.indices.begin() + g.indptr[size_t(row)], g.indices.begin() + g.indptr[size_t(row + 1)]);
    const gw_adjacency view = g.view();
    std::vector<float> weights = data::floats(edges, 5);
    for (float& w : weights) w = std::max(w, 0.0f);
    const std::vector<int64_t> chosen = every_third(nodes);
    const std::set<int64_t> inside(chosen.begin(), chosen.end());
    std::vector<edges_of> slices, unions;
    for (const int32_t threads : {1, 4})
      for (const bool dense : {false, true}) {
        CHECK(gw_thread_width(threads) == 0);
        slices.push_back(slice(view, chosen, dense));
        check_entries(g, slices.back());
        for (const bool ascending : {false, true})
          unions.push_back(egos(view, chosen, {3, 2}, false, nullptr, ascending, dense));
        check_entries(g, unions.back());
        check_entries(g, egos(view, chosen, {2, -1}, false, data::pointer(weights), true, dense));
        check_entries(g, egos(view, chosen, {2, 2}, true, nullptr, false, dense));
      }
    for (const edges_of& other : slices) CHECK(other == slices.front());
    for (const edges_of& other : unions) CHECK(other == unions.front());
    int64_t expected = 0;
    for (const int64_t node : chosen)
      for (int64_t p = g.indptr[size_t(node)]; p < g.indptr[size_t(node + 1)]; ++p)
        expected += int64_t(inside.count(g.indices[size_t(p)]));
    CHECK(int64_t(slices.front().indices.size()) == expected);
    CHECK(std::equal(chosen.begin(), chosen.end(), unions.front().nodes.begin()));
  }
  CHECK(gw_thread_width(4) == 0);
}

TEST(bad_nodes_leave_a_subset_usable) {
  data::graph g(9, 9, 30, 4);
  const gw_adjacency view = g.view();
  void* handle = nullptr;
  int64_t count = 0;
  CHECK(gw_subset_new(&view, 0, &handle) == 0);
  for (const std::vector<int64_t>& bad : std::vector<std::vector<int64_t>>{{0, 9}, {-1}, {2, 2}})
    CHECK(gw_subset_slice(handle, 1, bad.data(), int64_t(bad.size()), bad.data(), nullptr, &count) != 0);
  std::vector<int64_t> good = {2, 3, 2}, out(3, 0), places(3, 0);
  CHECK(gw_subset_distinct(handle, 3, good.data(), out.data(), places.data(), &count) == 0);
  CHECK(count == 2 && out[0] == 2 && out[1] == 3 && places[2] == 0);
  CHECK(gw_subset_free(handle) == 0);
}
