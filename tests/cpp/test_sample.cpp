// Sampling of neighbourhoods, permutations, gathering of rows.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

struct block {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<uint32_t> offsets;

  block(int64_t rows, int64_t edges)
      : indptr(size_t(rows + 1), 0), indices(size_t(edges), 0), offsets(size_t(edges), 0) {}
};

struct batch {
  std::vector<int64_t> n_id, rows;
  std::vector<block> blocks;

  bool operator==(const batch& other) const {
    if (n_id != other.n_id || rows != other.rows) return false;
    for (size_t h = 0; h < blocks.size(); ++h)
      if (blocks[h].indptr != other.blocks[h].indptr || blocks[h].indices != other.blocks[h].indices ||
          blocks[h].offsets != other.blocks[h].offsets)
        return false;
    return true;
  }
};

batch draw(void* sampler, std::vector<int64_t> seeds, const std::vector<int64_t>& fanouts, bool replace) {
  const size_t hops = fanouts.size();
  batch out;
  out.rows.assign(hops, 0);
  std::vector<int64_t> edges(hops, 0), totals(2, 0);
  CHECK(gw_sample_begin(sampler, int64_t(seeds.size()), data::pointer(seeds), int64_t(hops), fanouts.data(), replace, 1,
                        2, 3, out.rows.data(), edges.data(), totals.data()) == 0);
  block inner(hops > 1 ? out.rows[hops - 2] : 0, totals[0]);
  std::vector<int64_t*> indptr;
  std::vector<int32_t*> indices;
  std::vector<uint32_t*> offsets;
  out.blocks.reserve(hops);
  for (size_t h = 0; h < hops; ++h) {
    block& made = out.blocks.emplace_back(out.rows[h], edges[h]);
    indptr.push_back(made.indptr.data());
    indices.push_back(data::pointer(made.indices));
    offsets.push_back(data::pointer(made.offsets));
  }
  out.n_id.assign(size_t(totals[1]), -1);
  int64_t nodes = 0;
  CHECK(gw_sample_finish(sampler, data::pointer(out.n_id), inner.indptr.data(), data::pointer(inner.indices),
                         data::pointer(inner.offsets), indptr.data(), indices.data(), offsets.data(), nullptr,
                         &nodes) == 0);
  CHECK(nodes <= totals[1]);
  out.n_id.resize(size_t(nodes));
  return out;
}

// Every entry is an in-edge of its row, every row has as many as it must, every node occurs once.
void check_batch(const data::graph& g, const std::vector<int64_t>& seeds, const std::vector<int64_t>& fanouts,
                 bool replace, const batch& b) {
  CHECK(std::equal(seeds.begin(), seeds.end(), b.n_id.begin()));
  std::vector<int64_t> sorted = b.n_id;
  std::sort(sorted.begin(), sorted.end());
  CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
  for (size_t h = 0; h < fanouts.size(); ++h)
    for (int64_t row = 0; row < b.rows[h]; ++row) {
      const int64_t node = b.n_id[size_t(row)], at = g.indptr[size_t(node)];
      const int64_t degree = g.indptr[size_t(node + 1)] - at, k = fanouts[h];
      const int64_t first = b.blocks[h].indptr[size_t(row)], last = b.blocks[h].indptr[size_t(row + 1)];
      CHECK(last - first == (replace ? (degree > 0 ? k : 0) : k < 0 ? degree : std::min(degree, k)));
      std::vector<uint32_t> drawn(b.blocks[h].offsets.begin() + first, b.blocks[h].offsets.begin() + last);
      for (int64_t p = first; p < last; ++p) {
        const uint32_t offset = b.blocks[h].offsets[size_t(p)];
        CHECK(int64_t(offset) < degree);
        CHECK(b.n_id[size_t(b.blocks[h].indices[size_t(p)])] == g.indices[size_t(at + offset)]);
      }
      std::sort(drawn.begin(), drawn.end());
      CHECK(replace || std::adjacent_find(drawn.begin(), drawn.end()) == drawn.end());
    }
}

std::vector<int64_t> some_seeds(int64_t nodes, int64_t count) {
  std::vector<int64_t> order(size_t(nodes), 0);
  CHECK(gw_permutation(nodes, 9, 1, data::pointer(order)) == 0);
  order.resize(size_t(std::min(nodes, count)));
  return order;
}

}  // namespace

TEST(batches_are_samples_whatever_the_fanouts) {
  for (const auto& [nodes, edges] : {std::pair<int64_t, int64_t>{1, 0}, {1, 4}, {9, 30}, {400, 9000}})
    for (const bool skew : {false, true})
      for (const std::vector<int64_t>& fanouts : std::vector<std::vector<int64_t>>{
               {1}, {-1}, {3, 2}, {2, 3}, {-1, 2}, {2, -1}, {5, 3, 1}, {1, 4, 2}, {70, 65}})
        for (const bool replace : {false, true})
          for (const int32_t dense : {0, 1}) {
            if (replace && *std::min_element(fanouts.begin(), fanouts.end()) < 0) continue;
            data::graph g(nodes, nodes, edges, 4, skew && nodes > 3);
            const gw_adjacency view = g.view();
            void* sampler = nullptr;
            CHECK(gw_sampler_new(&view, nullptr, dense, &sampler) == 0);
            const std::vector<int64_t> seeds = some_seeds(nodes, 20);
            check_batch(g, seeds, fanouts, replace, draw(sampler, seeds, fanouts, replace));
            CHECK(gw_sampler_free(sampler) == 0);
          }
}

// What a part has of every row is what the whole batch has of that node, wherever that was drawn.
TEST(a_part_of_a_batch_draws_what_the_batch_draws) {
  data::graph g(400, 400, 9000, 4, true);
  const gw_adjacency view = g.view();
  const std::vector<int64_t> seeds = some_seeds(400, 60), mine(seeds.begin() + 20, seeds.begin() + 45);
  for (const std::vector<int64_t>& fanouts : std::vector<std::vector<int64_t>>{{4}, {5, 3}, {2, 6}, {3, 3}, {70, 2}})
    for (const bool replace : {false, true})
      for (const int32_t dense : {0, 1}) {
        void* sampler = nullptr;
        CHECK(gw_sampler_new(&view, nullptr, dense, &sampler) == 0);
        const batch whole = draw(sampler, seeds, fanouts, replace);
        const auto count = int64_t(seeds.size());
        CHECK(gw_sampler_reach(sampler, 1, &count, seeds.data()) == 0);
        const batch part = draw(sampler, mine, fanouts, replace);
        check_batch(g, mine, fanouts, replace, part);
        for (size_t h = 0; h < fanouts.size(); ++h)
          for (int64_t row = 0; row < part.rows[h]; ++row) {
            const int64_t at =
                std::find(whole.n_id.begin(), whole.n_id.end(), part.n_id[size_t(row)]) - whole.n_id.begin();
            CHECK(at < whole.rows[h]);
            const block &a = whole.blocks[h], &b = part.blocks[h];
            CHECK(std::equal(a.offsets.begin() + a.indptr[size_t(at)], a.offsets.begin() + a.indptr[size_t(at) + 1],
                             b.offsets.begin() + b.indptr[size_t(row)], b.offsets.begin() + b.indptr[size_t(row) + 1]));
          }
        CHECK(draw(sampler, seeds, fanouts, replace) == whole);  // what was reached is forgotten
        CHECK(gw_sampler_free(sampler) == 0);
      }
}

TEST(an_open_hop_names_what_a_numbered_one_numbers) {
  data::graph g(3000, 3000, 60000, 12, true);
  const gw_adjacency view = g.view();
  const std::vector<int64_t> seeds = some_seeds(3000, 700);
  for (const std::vector<int64_t>& fanouts : std::vector<std::vector<int64_t>>{{4}, {6, 3}, {2, 5}, {5, 3, -1}, {4, 4}})
    for (const int32_t threads : {1, 3}) {
      CHECK(gw_thread_width(threads) == 0);
      void* sampler = nullptr;
      CHECK(gw_sampler_new(&view, nullptr, 1, &sampler) == 0);
      const batch whole = draw(sampler, seeds, fanouts, false);
      const size_t hops = fanouts.size();
      std::vector<int64_t> rows(hops, 0), edges(hops, 0), totals(2, 0);
      CHECK(gw_sample_begin(sampler, 700, seeds.data(), int64_t(hops), fanouts.data(), false, 1, 2, 3, rows.data(),
                            edges.data(), totals.data()) == 0);
      block inner(hops > 1 ? rows[hops - 2] : 0, totals[0]);
      const auto count = size_t(rows[hops - 1]), entries = size_t(edges[hops - 1]);
      std::vector<int64_t> outer(count + 1, -1), n_id(count, -1);
      std::vector<int32_t> columns(entries, -1);
      std::vector<int64_t*> indptr(hops, nullptr);
      std::vector<int32_t*> indices(hops, nullptr);
      std::vector<uint32_t*> offsets(hops, nullptr);
      indptr[hops - 1] = outer.data();
      int64_t nodes = 0;
      CHECK(gw_sample_finish(sampler, data::pointer(n_id), inner.indptr.data(), data::pointer(inner.indices),
                             data::pointer(inner.offsets), indptr.data(), indices.data(), offsets.data(),
                             columns.data(), &nodes) == 0);
      CHECK(nodes == rows[hops - 1] && std::equal(n_id.begin(), n_id.end(), whole.n_id.begin()));
      const block& numbered = whole.blocks[hops - 1];
      CHECK(outer == numbered.indptr);
      for (size_t p = 0; p < columns.size(); ++p) CHECK(columns[p] == whole.n_id[size_t(numbered.indices[p])]);
      CHECK(gw_sampler_free(sampler) == 0);
    }
  CHECK(gw_thread_width(2) == 0);
}

TEST(weights_decide_who_can_be_drawn) {
  data::graph g(50, 50, 2000, 6);
  std::vector<float> weights = data::floats(2000, 7);
  for (float& w : weights) w = std::max(w, 0.0f);
  const gw_adjacency view = g.view();
  for (const bool replace : {false, true}) {
    void* sampler = nullptr;
    CHECK(gw_sampler_new(&view, weights.data(), 1, &sampler) == 0);
    const batch b = draw(sampler, some_seeds(50, 50), {7, 3}, replace);
    for (int64_t row = 0; row < b.rows[0]; ++row)
      for (int64_t p = b.blocks[0].indptr[size_t(row)]; p < b.blocks[0].indptr[size_t(row + 1)]; ++p)
        CHECK(weights[size_t(g.indptr[size_t(b.n_id[size_t(row)])] + b.blocks[0].offsets[size_t(p)])] > 0);
    CHECK(gw_sampler_free(sampler) == 0);
  }
}

TEST(one_thread_and_several_number_alike) {
  data::graph g(5000, 5000, 200000, 8);
  const gw_adjacency view = g.view();
  std::vector<batch> batches;
  for (const int32_t dense : {0, 1}) {
    void* sampler = nullptr;
    CHECK(gw_sampler_new(&view, nullptr, dense, &sampler) == 0);
    for (const int32_t threads : {1, 4, 1, 2}) {
      CHECK(gw_thread_width(threads) == 0);
      batches.push_back(draw(sampler, some_seeds(5000, 1500), {20, 15}, false));
    }
    CHECK(gw_sampler_free(sampler) == 0);
  }
  CHECK(gw_thread_width(4) == 0);
  CHECK(batches.front().blocks.back().indices.size() > 4 << 14);
  for (const batch& other : batches) CHECK(other == batches.front());
}

TEST(bad_seeds_leave_a_sampler_usable) {
  data::graph g(9, 9, 30, 4);
  const gw_adjacency view = g.view();
  void* sampler = nullptr;
  CHECK(gw_sampler_new(&view, nullptr, 1, &sampler) == 0);
  const int64_t fanout = 2;
  int64_t rows = 0, edges = 0, totals[2];
  for (const std::vector<int64_t>& seeds : std::vector<std::vector<int64_t>>{{9}, {-1}, {4, 4}}) {
    const int status =
        gw_sample_begin(sampler, int64_t(seeds.size()), seeds.data(), 1, &fanout, 0, 0, 0, 0, &rows, &edges, totals);
    CHECK(status == (seeds.size() == 1 ? gw::out_of_range : gw::bad_argument));
    CHECK(std::string(gw_last_error()).find("seeds") != std::string::npos);
  }
  check_batch(g, {4, 0}, {2}, false, draw(sampler, {4, 0}, {2}, false));
  CHECK(gw_sampler_free(sampler) == 0);
}

TEST(permutations_hold_everything_once) {
  for (const int64_t n : {0, 1, 2, 1000}) {
    std::vector<int64_t> order(size_t(n), -1), other(size_t(n), -1);
    CHECK(gw_permutation(n, 3, 0, data::pointer(order)) == 0);
    CHECK(gw_permutation(n, 3, 1, data::pointer(other)) == 0);
    CHECK(n < 1000 || order != other);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) CHECK(order[size_t(i)] == i);
  }
}

TEST(rows_are_gathered_whatever_their_width) {
  for (const int64_t bytes : {0, 1, 4, 60, 64, 100, 400, 2408, 4096})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{77}, (int64_t{9} << 20) / std::max<int64_t>(bytes, 4096)}) {
      const int64_t rows = 50, stride = bytes + (bytes % 8 == 0 ? 8 : 0);
      std::vector<char> table(size_t(rows * stride), 0), out(size_t(n * bytes), 0);
      for (size_t i = 0; i < table.size(); ++i) table[i] = char(i * 7 + i / 251);
      std::vector<int64_t> ids = data::ids<int64_t>(n, rows, 5);
      CHECK(gw_gather_rows(data::pointer(table), rows, stride, bytes, data::pointer(ids), n, data::pointer(out)) == 0);
      for (int64_t i = 0; i < n; ++i)
        CHECK(std::equal(out.begin() + i * bytes, out.begin() + (i + 1) * bytes,
                         table.begin() + ids[size_t(i)] * stride));
    }
  const int64_t bad[] = {0, 3};
  char table[12] = {}, out[8];
  CHECK(gw_gather_rows(table, 3, 4, 4, bad, 2, out) == gw::out_of_range);
  CHECK(std::string(gw_last_error()) == "gather_rows: expected ids in [0, 3), got 3 at position 1");
}

TEST(rows_of_8_bits_are_levels_times_a_scale_a_column) {
  for (const int64_t width : {1, 3, 15, 16, 17, 64, 130}) {
    const int64_t rows = 50, ld = width + 3, n = 333;
    std::vector<int8_t> levels(size_t(rows * ld), 0);
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = int8_t(i * 37 + i / 251);
    std::vector<float> scale(static_cast<size_t>(width)), offset = data::floats(width, 3);
    for (int64_t c = 0; c < width; ++c) scale[size_t(c)] = float(c + 1) / 1024.0f;  // few bits: the product is exact
    const std::vector<int64_t> ids = data::ids<int64_t>(n, rows, 5);
    const auto holds = [&](const int64_t* wanted, int64_t count) {
      std::vector<float> out(size_t(count * width), -1.0f);
      CHECK(gw_gather_int8_rows(levels.data(), rows, width, ld, scale.data(), offset.data(), wanted, count,
                                out.data()) == 0);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t c = 0; c < width; ++c) {
          const double level = levels[size_t((wanted ? wanted[i] : i) * ld + c)];
          CHECK(out[size_t(i * width + c)] == float(level * scale[size_t(c)] + offset[size_t(c)]));
        }
    };
    holds(ids.data(), n);
    holds(nullptr, rows);
  }
  const int64_t bad[] = {0, 3};
  const int8_t levels[3] = {};
  const float one = 1.0f;
  float out[2];
  CHECK(gw_gather_int8_rows(levels, 3, 1, 1, &one, &one, bad, 2, out) == gw::out_of_range);
  CHECK(gw_gather_int8_rows(levels, 3, 1, 1, &one, &one, nullptr, 4, out) == gw::bad_argument);
}
