// Random graphs with communities and power-law degrees, drawn straight into compressed form.
//
// Nodes are handled in `slots`: community after community, so that a community is a range and its tables stay in cache.
// `members[slot]` is the public id. Every unordered pair of slots has one owner (half of the pairs of each slot), and
// only the owner may draw it, without repetition: so there are no duplicates to remove, and the number of links is
// exact. Every draw is a pure function of (seed, stream, index); degrees and tables are integers. So the graph is the
// same for any number of threads and any instruction set. The model is the degree-corrected stochastic block model
// (Karrer and Newman, Phys. Rev. E 83, 2011); alias tables after Vose (IEEE TSE 17, 1991).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/parallel.h"
#include "graphweft/rng.h"

namespace gw::generate {

inline constexpr int64_t grain = 256;  // slots or rows per chunk

// What a draw is for; the stream number of random_block.
enum stream : uint64_t {
  link_rows = 1,
  link_draws = 2,
  label_draws = 3,
  value_draws = 4,
  word_draws = 5,
  shuffles = 1 << 8
};

// A bijection of [0, n) computed point by point: a Feistel network of four rounds, walked until it lands inside.
class shuffle {
 public:
  shuffle(uint64_t n, uint64_t seed, uint64_t stream) : n_(n) {
    while ((uint64_t{1} << (2 * half_)) < n) ++half_;
    mask_ = (uint32_t{1} << half_) - 1;
    keys_ = random_block(seed, shuffles, stream);
  }
  uint64_t operator()(uint64_t value) const {
    do value = once(value);
    while (value >= n_);
    return value;
  }

 private:
  uint64_t once(uint64_t value) const {
    uint32_t left = uint32_t(value >> half_), right = uint32_t(value) & mask_;
    for (const uint32_t key : keys_) {
      uint32_t mixed = (right ^ key) * 0x85EBCA6Bu;
      mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35u;
      const uint32_t next = (left ^ (mixed >> (31 - half_))) & mask_;
      left = right;
      right = next;
    }
    return (uint64_t(left) << half_) | right;
  }
  uint64_t n_;
  int half_ = 1;
  uint32_t mask_;
  u32x4 keys_;
};

// A power law cut at both ends, P(x) ~ x^-exponent on [low, high], by its quantiles in 1/1024.
struct power_law {
  double low, high, exponent;
  [[nodiscard]] uint32_t quantile(double u) const {
    const double a = exponent - 1.0;
    const double x = low >= high ? low : low * std::pow(1.0 - u * (1.0 - std::pow(low / high, a)), -1.0 / a);
    return uint32_t(std::min(std::max(x * 1024.0 + 0.5, 1.0), 4294967295.0));
  }
};

// weights[slot]: the n quantiles of `law` in random order, so that their sum does not vary.
inline void draw_weights(int64_t n, uint64_t seed, uint64_t stream, power_law law, uint32_t* weights) {
  const shuffle rank(uint64_t(n), seed, stream);
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) weights[i] = law.quantile((double(rank(uint64_t(i))) + 0.5) / double(n));
  });
}

// ptr[i + 1] - ptr[i]: a share of `total` proportional to weights[i], rounded so that the shares add up; at most `cap`.
inline void split_total(int64_t n, const uint32_t* weights, int64_t total, int64_t cap, int64_t* ptr) {
  const int64_t chunks = (n + grain - 1) / grain;
  std::vector<uint64_t> before(size_t(chunks) + 1, 0);
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) before[size_t(begin / grain) + 1] += weights[i];
  });
  for (int64_t c = 0; c < chunks; ++c) before[size_t(c) + 1] += before[size_t(c)];
  const unsigned __int128 sum = std::max<uint64_t>(before[size_t(chunks)], 1);
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    uint64_t running = before[size_t(begin / grain)];
    auto share = [&] { return int64_t(static_cast<unsigned __int128>(running) * uint64_t(total) / sum); };
    for (int64_t i = begin, low = share(); i < end; ++i) {
      running += weights[i];
      const int64_t high = share();
      ptr[i + 1] = std::min(high - low, cap);
      low = high;
    }
  });
  ptr[0] = 0;
  for (int64_t i = 0; i < n; ++i) ptr[i + 1] += ptr[i];
}

// One cell of an alias table: keep this item if the draw is below `keep`, else take `other`.
struct alias_cell {
  uint32_t keep;
  int32_t other;
};

// The alias table of `size` integer weights; each item is drawn in proportion to its weight.
template <class Weight>
void build_alias(int64_t size, const Weight* weights, alias_cell* cells) {
  uint64_t total = 0;
  for (int64_t i = 0; i < size; ++i) total += weights[i];
  if (total == 0) {
    for (int64_t i = 0; i < size; ++i) cells[i] = {0xFFFFFFFFu, int32_t(i)};
    return;
  }
  using wide = unsigned __int128;
  std::vector<wide> mass(static_cast<size_t>(size));  // in units of total / size
  std::vector<int32_t> small, large;
  for (int64_t i = 0; i < size; ++i) {
    mass[size_t(i)] = wide(weights[i]) * uint64_t(size);
    cells[i] = {0xFFFFFFFFu, int32_t(i)};
    (mass[size_t(i)] < total ? small : large).push_back(int32_t(i));
  }
  while (!small.empty() && !large.empty()) {
    const int32_t poor = small.back(), rich = large.back();
    small.pop_back();
    cells[poor] = {uint32_t((mass[size_t(poor)] << 32) / total), rich};
    mass[size_t(rich)] -= total - mass[size_t(poor)];
    if (mass[size_t(rich)] < total) {
      large.pop_back();
      small.push_back(rich);
    }
  }
}

// An item of [0, size) by two words of 32 random bits.
inline int64_t draw_alias(const alias_cell* cells, int64_t size, uint32_t place, uint32_t level) {
  const int64_t item = int64_t((uint64_t(place) * uint64_t(size)) >> 32);
  return level < cells[item].keep ? item : cells[item].other;
}

// Small open-addressing set of ids that is emptied for every row.
class seen_set {
 public:
  void reset(int64_t expected) {
    size_t size = 16;
    while (int64_t(size) < 2 * expected) size *= 2;
    mask_ = size - 1;
    if (slots_.size() < size) slots_.resize(size);
    std::fill_n(slots_.begin(), size, -1);
  }
  // True if the id was not there.
  bool add(int32_t id) {
    size_t at = (uint32_t(id) * 0x9E3779B1u >> 7) & mask_;
    for (; slots_[at] >= 0; at = (at + 1) & mask_)
      if (slots_[at] == id) return false;
    slots_[at] = id;
    return true;
  }

 private:
  std::vector<int32_t> slots_;
  size_t mask_ = 0;
};

// The communities: slots [block_ptr[b], block_ptr[b + 1]) with an alias table each, and one over whole communities.
struct communities {
  int64_t num_slots, num_blocks;
  const int64_t* block_ptr;
  const alias_cell* slot_cells;   // [num_slots], `other` counts from the community's first slot
  const alias_cell* block_cells;  // [num_blocks]

  [[nodiscard]] int32_t draw(int64_t block, uint32_t place, uint32_t level) const {
    const int64_t begin = block_ptr[block];
    return int32_t(begin + draw_alias(slot_cells + begin, block_ptr[block + 1] - begin, place, level));
  }
};

// Of the two slots of a pair, the owner: the lower if both are even or both odd, else the higher.
inline bool owns(int64_t a, int64_t b) { return a != b && (((a ^ b) & 1) ? a > b : a < b); }

// Fills out[0 .. quota) with distinct slots owned by `row`: `inside` of them from its own community where it has that
// many.
inline void draw_row(const communities& graph, uint64_t seed, int64_t row, int64_t block, int64_t quota, int64_t inside,
                     seen_set& seen, int32_t* out) {
  int64_t count = 0;
  uint64_t attempt = 0;
  seen.reset(quota);
  auto offer = [&](int32_t slot) {
    if (owns(row, slot) && seen.add(slot)) out[count++] = slot;
  };
  auto words = [&] { return random_block(seed, link_draws | (uint64_t(row) << 8), attempt++); };
  const uint64_t inside_limit = uint64_t(6 * inside + 32);
  while (count < inside && attempt < inside_limit) {
    const u32x4 bits = words();
    offer(graph.draw(block, bits[0], bits[1]));
    if (count < inside) offer(graph.draw(block, bits[2], bits[3]));
  }
  const uint64_t limit = attempt + uint64_t(12 * (quota - count) + 64);
  while (count < quota && attempt < limit) {
    const u32x4 bits = words();
    const int64_t other = draw_alias(graph.block_cells, graph.num_blocks, bits[0], bits[1]);
    offer(graph.draw(other, bits[2], bits[3]));
  }
  auto slot = int64_t(to_below(random_u64(seed, link_rows, ~uint64_t(row)), uint64_t(graph.num_slots)));
  while (count < quota) {
    offer(int32_t(slot));
    slot = slot + 1 < graph.num_slots ? slot + 1 : 0;
  }
}

// How many of its links a row draws inside its community. A community has room for a part of a hub's links only, so the
// other rows draw more of theirs inside: `rate` (in 1/65536) is the least that reaches the wanted number of inside
// links.
struct inside_rule {
  const communities& graph;
  const int64_t* own_ptr;

  [[nodiscard]] static int64_t room(int64_t block_size) { return (block_size - 1) * 3 / 10; }
  [[nodiscard]] int64_t total(int64_t rate) const {
    std::vector<int64_t> sums(static_cast<size_t>(graph.num_blocks), 0);
    parallel_chunks(graph.num_blocks, [&](int64_t b) {
      const int64_t begin = graph.block_ptr[b], end = graph.block_ptr[b + 1], most = room(end - begin);
      int64_t sum = 0;  // in 1/65536 of a link
      for (int64_t row = begin; row < end; ++row) sum += std::min((own_ptr[row + 1] - own_ptr[row]) * rate, most << 16);
      sums[size_t(b)] = sum;
    });
    int64_t sum = 0;
    for (const int64_t part : sums) sum += part;
    return sum >> 16;
  }
  [[nodiscard]] int64_t rate_for(int64_t wanted) const {
    int64_t low = 0, high = 65536;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (total(middle) >= wanted)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};

// own[own_ptr[row] ..]: the slots that each row is linked to as owner; a share of `inside` of all links is drawn within
// communities as far as they have room. Needs own_ptr differences <= (num_slots - 1) / 2.
inline void draw_links(const communities& graph, uint64_t seed, double inside_share, const int64_t* own_ptr,
                       int32_t* own) {
  const inside_rule rule{graph, own_ptr};
  const int64_t rate = rule.rate_for(int64_t(inside_share * double(own_ptr[graph.num_slots])));
  parallel_ranges(graph.num_slots, grain, [&](int64_t begin, int64_t end) {
    seen_set seen;
    int64_t block = std::upper_bound(graph.block_ptr, graph.block_ptr + graph.num_blocks, begin) - graph.block_ptr - 1;
    for (int64_t row = begin; row < end; ++row) {
      while (row >= graph.block_ptr[block + 1]) ++block;
      const int64_t most = inside_rule::room(graph.block_ptr[block + 1] - graph.block_ptr[block]);
      const int64_t quota = own_ptr[row + 1] - own_ptr[row];
      const auto chance = int64_t(random_u64(seed, link_rows, uint64_t(row)) >> 48);
      const int64_t inside = std::min({quota, most, (quota * rate + chance) >> 16});
      draw_row(graph, seed, row, block, quota, inside, seen, own + own_ptr[row]);
    }
  });
}

// Whether link number p of `links` also runs back, where `back` of them do: evenly spread.
inline bool runs_back(int64_t p, int64_t links, int64_t back) {
  if (back == links) return true;
  using wide = unsigned __int128;
  return wide(p + 1) * uint64_t(back) / uint64_t(links) > wide(p) * uint64_t(back) / uint64_t(links);
}

// In-edges by public id: an owned link (row -> slot) is an in-edge of slot, and of row too if it runs back. Rows
// ascend. cursor is scratch [num_slots]; indices has links + back entries.
inline void compress_links(int64_t n, const int64_t* own_ptr, const int32_t* own, const int32_t* members, int64_t back,
                           int64_t* cursor, int64_t* indptr, int32_t* indices) {
  const int64_t links = own_ptr[n];
  // Integer counters: the order of the increments does not show in the result, and rows are sorted afterwards.
  auto bump = [&](int64_t slot, int64_t by) { return __atomic_fetch_add(cursor + slot, by, __ATOMIC_RELAXED); };
  auto returned = [&](int64_t row) {
    if (back == links) return own_ptr[row + 1] - own_ptr[row];
    int64_t count = 0;
    for (int64_t p = own_ptr[row]; p < own_ptr[row + 1]; ++p) count += runs_back(p, links, back);
    return count;
  };
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) { std::fill(cursor + begin, cursor + end, 0); });
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) bump(row, returned(row));
    for (int64_t p = own_ptr[begin]; p < own_ptr[end]; ++p) bump(own[p], 1);
  });
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) indptr[members[slot] + 1] = cursor[slot];
  });
  indptr[0] = 0;
  for (int64_t i = 0; i < n; ++i) indptr[i + 1] += indptr[i];
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) cursor[slot] = indptr[members[slot]];
  });
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t id = members[row];
      int64_t mine = bump(row, returned(row));
      for (int64_t p = own_ptr[row]; p < own_ptr[row + 1]; ++p) {
        indices[bump(own[p], 1)] = id;
        if (runs_back(p, links, back)) indices[mine++] = members[own[p]];
      }
    }
  });
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) std::sort(indices + indptr[row], indices + indptr[row + 1]);
  });
}

}  // namespace gw::generate
