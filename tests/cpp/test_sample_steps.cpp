// Batches sampled in steps: the batch of a slow sampler, however the steps are cut and overlapped.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"
#include "graphweft/rng.h"

namespace {

constexpr uint64_t seed = 11, epoch = 2, stage = 1;

struct block {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;  // numbers, or ids where the block is open
  std::vector<uint32_t> offsets;

  bool operator==(const block& other) const {
    return indptr == other.indptr && indices == other.indices && offsets == other.offsets;
  }
};

struct batch {
  std::vector<int64_t> n_id;
  std::vector<block> blocks;
  block inner;
};

// Offsets that a row draws, in plain loops over scalar draws.
std::vector<uint32_t> slow_row(uint64_t n, int64_t width, int64_t least, bool replace, uint64_t key, uint64_t hop,
                               int64_t node) {
  const uint64_t k = replace ? (n > 0 ? uint64_t(width) : 0) : std::min(n, uint64_t(width));
  const auto narrow = [&](uint64_t i, uint64_t bound) {
    return (gw::random_block(key, hop << 32 | i / 4, uint64_t(node))[i % 4] * bound) >> 32;
  };
  const auto wide = [&](uint64_t i, uint64_t bound) {
    return gw::to_below(gw::random_u64(key, uint64_t{1} << 63 | hop << 32 | i, uint64_t(node)), bound);
  };
  const bool many = n > 1 << 16 || k > 64;
  std::vector<uint64_t> out;
  if (!replace && k == n && uint64_t(least) >= n) {
    out.resize(n);
    std::iota(out.begin(), out.end(), 0);
  } else if (replace) {
    for (uint64_t i = 0; i < k; ++i) out.push_back(many ? wide(i, n) : narrow(i, n));
  } else if (many) {  // the first steps of a shuffle
    out.resize(n);
    std::iota(out.begin(), out.end(), 0);
    for (uint64_t i = 0; i < k; ++i) std::swap(out[i], out[i + wide(i, n - i)]);
    out.resize(k);
  } else {  // Bentley and Floyd: as a set in order of drawing, or in random order where a hop reads a beginning of it
    const bool ordered = uint64_t(least) < k;
    for (uint64_t i = 0; i < k; ++i) {
      const uint64_t last = n - k + i, drawn = narrow(i, last + 1);
      const auto found = std::find(out.begin(), out.end(), drawn);
      if (found == out.end())
        out.insert(ordered ? out.begin() : out.end(), drawn);
      else
        out.insert(ordered ? found + 1 : out.end(), last);
    }
    if (ordered) std::reverse(out.begin(), out.end());
  }
  return {out.begin(), out.end()};
}

int64_t limit(int64_t fanout) { return fanout < 0 ? INT64_MAX : fanout; }

// The whole batch, hop by hop over maps and vectors of vectors.
batch slow(const data::graph& g, const std::vector<int64_t>& seeds, const std::vector<int64_t>& fanouts, bool replace,
           bool open) {
  const uint64_t key = gw::mix64(seed + gw::mix64(epoch + gw::mix64(stage)));
  batch out;
  out.n_id = seeds;
  std::map<int64_t, int32_t> known;
  for (size_t i = 0; i < seeds.size(); ++i) known[seeds[i]] = int32_t(i);
  std::vector<std::vector<uint32_t>> drawn;
  size_t inner_rows = 0;
  const auto source = [&](size_t row, uint32_t offset) {
    return int64_t(g.indices[size_t(g.indptr[size_t(out.n_id[row])] + offset)]);
  };
  for (size_t hop = 0; hop < fanouts.size(); ++hop) {
    int64_t width = 0, least = INT64_MAX;
    for (size_t later = hop; later < fanouts.size(); ++later) {
      width = std::max(width, limit(fanouts[later]));
      least = std::min(least, limit(fanouts[later]));
    }
    const size_t rows = out.n_id.size();
    inner_rows = drawn.size();
    for (size_t row = drawn.size(); row < rows; ++row) {
      const int64_t node = out.n_id[row];
      const auto degree = uint64_t(g.indptr[size_t(node) + 1] - g.indptr[size_t(node)]);
      drawn.push_back(slow_row(degree, width, least, replace, key, hop, node));
    }
    const bool names = open && hop + 1 == fanouts.size();
    block made;
    made.indptr.push_back(0);
    const auto count = [&](size_t row) { return size_t(std::min(limit(fanouts[hop]), int64_t(drawn[row].size()))); };
    std::set<int64_t> fresh;
    for (size_t row = 0; row < rows; ++row)
      for (size_t i = 0; i < count(row); ++i)
        if (known.count(source(row, drawn[row][i])) == 0) fresh.insert(source(row, drawn[row][i]));
    for (const int64_t node : fresh) {  // ascending
      if (names) break;
      known[node] = int32_t(out.n_id.size());
      out.n_id.push_back(node);
    }
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < count(row); ++i) {
        const int64_t node = source(row, drawn[row][i]);
        made.indices.push_back(names ? int32_t(node) : known[node]);
        if (!names) made.offsets.push_back(drawn[row][i]);
      }
      made.indptr.push_back(int64_t(made.indices.size()));
    }
    out.blocks.push_back(made);
  }
  out.inner.indptr.push_back(0);
  if (open) return out;
  for (size_t row = 0; row < inner_rows; ++row) {
    for (const uint32_t offset : drawn[row]) {
      out.inner.indices.push_back(known[source(row, offset)]);
      out.inner.offsets.push_back(offset);
    }
    out.inner.indptr.push_back(int64_t(out.inner.offsets.size()));
  }
  return out;
}

block room(int64_t rows, int64_t edges) {
  return {std::vector<int64_t>(size_t(rows) + 1, 0), std::vector<int32_t>(size_t(edges), -1),
          std::vector<uint32_t>(size_t(edges), 0)};
}

// The steps of one batch. `overlap`: parts of a hop, the settling of the hop before and a look-up of its nodes' ids
// each on a thread of its own.
batch stepped(void* sampler, std::vector<int64_t> seeds, const std::vector<int64_t>& fanouts, bool replace, bool open,
              int64_t parts, bool overlap) {
  const auto hops = int64_t(fanouts.size());
  batch out;
  int64_t sizes[3];
  CHECK(gw_steps_first(sampler, int64_t(seeds.size()), data::pointer(seeds), hops, fanouts.data(), replace, seed, epoch,
                       stage, parts, sizes) == 0);
  out.n_id = seeds;
  std::vector<int64_t> ends{int64_t(seeds.size())};
  out.blocks.resize(size_t(hops));
  const auto settle = [&](int64_t hop) {
    block& b = out.blocks[size_t(hop)];
    return gw_steps_settle(sampler, hop, b.indptr.data(), data::pointer(b.indices), data::pointer(b.offsets));
  };
  for (int64_t hop = 0; hop < hops; ++hop) {
    block& here = out.blocks[size_t(hop)] = room(sizes[0], sizes[1]);
    const bool is_last = hop + 1 == hops;
    if (is_last) out.inner = room(hop > 0 ? ends[size_t(hop) - 1] : 0, sizes[2]);
    if (is_last && open) here.offsets.clear();
    int32_t nothing = 0;  // an open block without edges is open all the same
    void* const names = here.indices.empty() ? &nothing : here.indices.data();
    CHECK(gw_steps_place(sampler, hop, is_last ? here.indptr.data() : nullptr,
                         is_last && !open ? data::pointer(here.indices) : nullptr,
                         is_last && !open ? data::pointer(here.offsets) : nullptr,
                         is_last && open ? names : nullptr) == 0);
    std::vector<int> status(size_t(parts) + 2, 0);
    std::vector<int64_t> seen(size_t(sizes[0]), -1);
    std::vector<std::thread> team;
    const auto run = [&](auto step) { overlap ? void(team.emplace_back(step)) : step(); };
    for (int64_t part = parts - 1; part >= 0; --part)
      run([&, part] { status[size_t(part)] = gw_steps_draw(sampler, hop, part); });
    if (hop > 0) run([&] { status[size_t(parts)] = settle(hop - 1); });
    run([&] { status[size_t(parts) + 1] = gw_steps_ids(sampler, 0, int64_t(seen.size()), data::pointer(seen)); });
    for (std::thread& member : team) member.join();
    CHECK(std::all_of(status.begin(), status.end(), [](int s) { return s == 0; }));
    CHECK(seen == out.n_id);
    if (is_last && open) return out;
    CHECK(gw_steps_number(sampler, hop, sizes) == 0);
    const auto before = int64_t(out.n_id.size());
    out.n_id.resize(size_t(sizes[0]));
    CHECK(gw_steps_ids(sampler, before, sizes[0], out.n_id.data() + before) == 0);
    ends.push_back(sizes[0]);
  }
  CHECK(settle(hops - 1) == 0);
  CHECK(gw_steps_inner(sampler, out.inner.indptr.data(), data::pointer(out.inner.indices),
                       data::pointer(out.inner.offsets)) == 0);
  return out;
}

std::vector<int64_t> some_seeds(int64_t nodes, int64_t count) {
  std::vector<int64_t> order(size_t(nodes), 0);
  CHECK(gw_permutation(nodes, 9, 1, data::pointer(order)) == 0);
  order.resize(size_t(std::min(nodes, count)));
  return order;
}

void check_steps(data::graph& g, const std::vector<int64_t>& seeds, const std::vector<int64_t>& fanouts, bool replace,
                 int32_t dense, int64_t parts, bool overlap) {
  const gw_adjacency view = g.view();
  void* sampler = nullptr;
  CHECK(gw_sampler_new(&view, nullptr, dense, &sampler) == 0);
  for (const bool open : {false, true, false}) {  // one sampler serves batch after batch
    const batch expected = slow(g, seeds, fanouts, replace, open);
    const batch made = stepped(sampler, seeds, fanouts, replace, open, parts, overlap);
    CHECK(made.n_id == expected.n_id);
    CHECK(made.blocks == expected.blocks);
    CHECK(open || fanouts.size() == 1 || made.inner == expected.inner);
  }
  CHECK(gw_sampler_free(sampler) == 0);
}

const std::vector<std::vector<int64_t>> all_fanouts{{1},     {-1},      {3, 2},    {2, 3},   {-1, 2},
                                                    {2, -1}, {5, 3, 1}, {1, 4, 2}, {70, 65}, {2, 80}};

}  // namespace

TEST(steps_make_the_batch_of_a_slow_sampler) {
  for (const auto& [nodes, edges] : {std::pair<int64_t, int64_t>{1, 0}, {1, 4}, {9, 30}, {400, 9000}})
    for (const bool skew : {false, true})
      for (const std::vector<int64_t>& fanouts : all_fanouts)
        for (const bool replace : {false, true})
          for (const int64_t parts : {1, 3}) {
            if (replace && *std::min_element(fanouts.begin(), fanouts.end()) < 0) continue;
            data::graph g(nodes, nodes, edges, 4, skew && nodes > 3);
            check_steps(g, some_seeds(nodes, 20), fanouts, replace, int32_t(parts == 1), parts, false);
          }
}

TEST(steps_of_a_row_beyond_sixteen_bits) {
  data::graph g(3, 3, 70000, 5, false);
  std::fill(g.indptr.begin() + 1, g.indptr.end(), 70000);
  check_steps(g, {0, 2}, {3, 2}, false, 1, 2, false);
  check_steps(g, {0}, {100}, false, 1, 1, false);
}

TEST(steps_without_seeds_make_an_empty_batch) {
  data::graph g(9, 9, 30, 4);
  check_steps(g, {}, {3, 2}, false, 1, 2, false);
}

TEST(steps_on_threads_that_overlap_make_the_same_batch) {
  data::graph g(3000, 3000, 60000, 12, true);
  for (const std::vector<int64_t>& fanouts : std::vector<std::vector<int64_t>>{{4}, {6, 3}, {2, 5}, {5, 3, -1}})
    for (const int32_t dense : {0, 1}) check_steps(g, some_seeds(3000, 500), fanouts, false, dense, 4, true);
}

TEST(samplers_step_side_by_side) {
  data::graph g(3000, 3000, 60000, 12, true);
  const std::vector<int64_t> fanouts{5, 3};
  std::vector<std::thread> team;
  std::vector<int> same(4, 0);
  for (size_t i = 0; i < same.size(); ++i)
    team.emplace_back([&, i] {
      const gw_adjacency view = g.view();
      void* sampler = nullptr;
      if (gw_sampler_new(&view, nullptr, 1, &sampler) != 0) return;
      std::vector<int64_t> seeds(100);
      std::iota(seeds.begin(), seeds.end(), int64_t(i) * 50);
      const batch made = stepped(sampler, seeds, fanouts, false, false, 2, i % 2 == 0);
      const batch expected = slow(g, seeds, fanouts, false, false);
      same[i] = gw_sampler_free(sampler) == 0 && made.n_id == expected.n_id && made.blocks == expected.blocks;
    });
  for (std::thread& member : team) member.join();
  CHECK(std::all_of(same.begin(), same.end(), [](int s) { return s == 1; }));
}

TEST(bad_seeds_leave_steps_usable) {
  data::graph g(9, 9, 30, 4);
  const gw_adjacency view = g.view();
  void* sampler = nullptr;
  CHECK(gw_sampler_new(&view, nullptr, 1, &sampler) == 0);
  const std::vector<int64_t> fanouts{2, 2};
  int64_t sizes[3];
  for (const std::vector<int64_t>& seeds : std::vector<std::vector<int64_t>>{{9}, {-1}, {4, 4}}) {
    const int status = gw_steps_first(sampler, int64_t(seeds.size()), seeds.data(), 2, fanouts.data(), 0, seed, epoch,
                                      stage, 2, sizes);
    CHECK(status == (seeds.size() == 1 ? gw::out_of_range : gw::bad_argument));
    CHECK(std::string(gw_last_error()).find("seeds") != std::string::npos);
  }
  CHECK(gw_steps_first(sampler, 1, fanouts.data(), 2, fanouts.data(), 0, seed, epoch, stage, 0, sizes) !=
        0);  // 0 parts
  const batch made = stepped(sampler, {4, 0}, fanouts, false, false, 2, false);
  CHECK(made.blocks == slow(g, {4, 0}, fanouts, false, false).blocks);
  CHECK(gw_sampler_free(sampler) == 0);
}
