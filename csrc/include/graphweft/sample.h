// One sampled batch: hop by hop, every new node draws in-edges, and the new ones of the nodes those come from are
// numbered in ascending order of their ids.
//
// A node draws once, in the hop that first reaches it, as many edges as any later hop may want; hop h then reads the
// first fanouts[h] of them, a uniform sample as well. So every block has min(in-degree, fan-out) edges per destination,
// and an edge is in the batch once.
//
// All threads draw and mark what they reach; what is new is collected from the marks; all threads look numbers up.
//
// Some seeds of a larger batch are sampled alone where it is known what the larger one reaches before: a node that it
// reaches in an earlier hop draws as in that hop, of which the later hop keeps the beginning.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/parallel.h"
#include "graphweft/pick.h"
#include "graphweft/reached.h"
#include "graphweft/renumber.h"
#include "graphweft/scratch.h"
#include "graphweft/skips.h"

namespace gw {

// Where the arrays of a batch go. Rows and columns are numbers of the batch; `offsets` are places within the row of the
// whole graph. Block h has the destinations [0, rows[h]); `inner` are the drawn edges of all nodes but the last hop's.
// Null arrays are not wanted. With `open`, the last block's columns are the ids of the whole graph's nodes, of its
// index type: that hop is drawn and not numbered, and its block has no other arrays but the offsets of its rows.
struct batch_arrays {
  int64_t* n_id;
  int64_t* inner_indptr;
  int32_t* inner_indices;
  uint32_t* inner_offsets;
  int64_t* const* block_indptr;
  int32_t* const* block_indices;
  uint32_t* const* block_offsets;
  void* open = nullptr;
};

struct batch_sizes {
  std::vector<int64_t> rows;         // destinations of every hop
  std::vector<int64_t> block_edges;  // edges of every hop's block
  int64_t inner_edges = 0;
  int64_t most_nodes = 0;  // nodes of the batch, at most
};

// Nanoseconds of the steady clock.
struct hop_times {
  int64_t begun, ended;
};

inline int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class sampler {
 public:
  sampler() = default;
  sampler(const sampler&) = delete;
  sampler& operator=(const sampler&) = delete;
  virtual ~sampler() = default;
  // The next batch has no edge src[i] -> dst[i] whose destination is a seed, however often the graph has it.
  virtual void exclude(int64_t count, const int64_t* src, const int64_t* dst) = 0;
  // The next batch is a part of one that reaches node ids[i] in hop h for the first time, ends[h - 1] <= i < ends[h].
  virtual void reach(int64_t hops, const int64_t* ends, const int64_t* ids) = 0;
  // Draws of node v are keyed by names[v], its id in a larger graph, which outlives the sampler; null: by v.
  virtual void name(const int64_t* names) = 0;
  virtual batch_sizes begin(const int64_t* seeds, int64_t count, const std::vector<int64_t>& fanouts, bool replace,
                            uint64_t seed) = 0;
  virtual int64_t finish(const batch_arrays& out) = 0;
  // When each hop of the last batch was drawn and numbered.
  virtual const std::vector<hop_times>& times() const = 0;
};

template <class I, class Renumbering>
class neighbor_sampler : public sampler {
 public:
  // `weights` by position, or null; both outlive the sampler.
  neighbor_sampler(const csr_view<I>& graph, const float* weights)
      : graph_(graph), weights_(weights), numbers_(graph.num_rows), memory_(size_t(std::max(num_threads(), 1))) {}

  void exclude(int64_t count, const int64_t* src, const int64_t* dst) override { skips_.set(count, src, dst); }

  void reach(int64_t hops, const int64_t* ends, const int64_t* ids) override { reached_.set(hops, ends, ids); }

  void name(const int64_t* names) override { keyed_ids_ = names; }

  const std::vector<hop_times>& times() const override { return times_; }

  // Draws all hops but the last.
  batch_sizes begin(const int64_t* seeds, int64_t count, const std::vector<int64_t>& fanouts, bool replace,
                    uint64_t seed) override {
    if (memory_.size() < size_t(num_threads())) memory_.resize(size_t(num_threads()));
    start(seeds, count, fanouts, replace, seed);
    for (int64_t hop = 0; hop + 1 < hops_; ++hop) {
      open(hop);
      const int64_t first = ends_[size_t(hop)], edges = starts_[ends_[size_t(hop) + 1]];
      columns_.reserve(edges, starts_[first]);
      offsets_.reserve(edges, starts_[first]);
      run_hop(hop, columns_.data() + starts_[first], offsets_.data() + starts_[first]);
    }
    open(hops_ - 1);
    return sizes();
  }

  // Draws the last hop straight into its block and writes everything else; returns the number of nodes.
  int64_t finish(const batch_arrays& out) override {
    const int64_t last = hops_ - 1, inner_rows = ends_[size_t(last)];
    int64_t* const indptr = out.block_indptr[last];
    const int64_t before = write_offsets(last, inner_rows, indptr);
    const int64_t outer_rows = ends_[size_t(hops_)] - inner_rows;
    copy(starts_.data() + inner_rows, outer_rows + 1, indptr + inner_rows, before - starts_[inner_rows]);
    if (out.open != nullptr)
      draw_open(last, indptr, static_cast<I*>(out.open), before);
    else
      run_hop(last, out.block_indices[last] + before, out.block_offsets[last] + before);
    for (int64_t hop = 0; hop < last; ++hop)
      if (out.block_indptr[hop] != nullptr) write_offsets(hop, ends_[size_t(hop) + 1], out.block_indptr[hop]);
    for (int64_t hop = 0; hop < hops_ - (out.open != nullptr); ++hop)
      if (out.block_indptr[hop] != nullptr)
        copy_rows(std::min(inner_rows, ends_[size_t(hop) + 1]), out.block_indptr[hop], out.block_indices[hop],
                  out.block_offsets[hop]);
    copy(starts_.data(), inner_rows + 1, out.inner_indptr);
    copy(columns_.data(), starts_[inner_rows], out.inner_indices);
    copy(offsets_.data(), starts_[inner_rows], out.inner_offsets);
    copy(nodes_.data(), num_nodes_, out.n_id);
    return num_nodes_;
  }

 protected:
  static constexpr int64_t entries_under_way = 24, draw_grain = 256, row_grain = 2048, entry_grain = int64_t{1} << 14,
                           ahead = 32;
  static constexpr uint32_t narrow_most = 1u << 16;  // rows longer than that are drawn from with 64 bits

  [[nodiscard]] static int64_t limit(int64_t fanout) { return fanout < 0 ? INT64_MAX : fanout; }

  void start(const int64_t* seeds, int64_t count, const std::vector<int64_t>& fanouts, bool replace, uint64_t seed) {
    fanouts_ = fanouts;
    replace_ = replace;
    seed_ = seed;
    hops_ = int64_t(fanouts.size());
    times_.clear();
    reached_.begin();
    skips_.begin();
    add_seeds(seeds, count);
    skips_.find(graph_, nodes_.data(), count);
    ends_.assign(1, 0);
    plan_widths();
  }

  void add_seeds(const int64_t* seeds, int64_t count) {
    numbers_.start(count);
    nodes_.reserve(count, 0);
    for (int64_t i = 0; i < count; ++i) {
      if (seeds[i] < 0 || seeds[i] >= graph_.num_rows)
        throw error(out_of_range, "expected seeds in [0, " + std::to_string(graph_.num_rows) + "), got " +
                                      std::to_string(seeds[i]) + " at position " + std::to_string(i));
      const uint32_t number = numbers_.add_seed(seeds[i], uint32_t(i));
      if (number != uint32_t(i))
        throw error(bad_argument, "expected distinct seeds, got " + std::to_string(seeds[i]) + " at positions " +
                                      std::to_string(number) + " and " + std::to_string(i));
      nodes_[i] = I(seeds[i]);
    }
    num_nodes_ = count;
  }

  // How many edges a node of each hop draws, and whether the order of its sample matters.
  void plan_widths() {
    widths_.assign(size_t(hops_), 0);
    least_.assign(size_t(hops_), INT64_MAX);
    int64_t most = 0, least = INT64_MAX;
    falling_ = true;
    for (int64_t hop = hops_ - 1; hop >= 0; --hop) {
      least_[size_t(hop)] = least;
      falling_ &= limit(fanouts_[size_t(hop)]) >= most;
      most = std::max(most, limit(fanouts_[size_t(hop)]));
      least = std::min(least, limit(fanouts_[size_t(hop)]));
      widths_[size_t(hop)] = most;
      least_[size_t(hop)] = std::min(least_[size_t(hop)], limit(fanouts_[size_t(hop)]));
    }
  }

  // The nodes that no earlier hop has reached are the rows of this one: how many edges each draws, and where they go.
  void open(int64_t hop) {
    const int64_t first = ends_.back(), rows = num_nodes_;
    ends_.push_back(rows);
    begins_.reserve(rows, first);
    degrees_.reserve(rows, first);
    starts_.reserve(rows + 1, hop == 0 ? 0 : first + 1);
    if (hop == 0) starts_[0] = 0;
    if (hop > 0 && !reached_.empty()) find_reached(hop, first, rows);
    const int64_t width = widths_[size_t(hop)], chunks = (rows - first + row_grain - 1) / row_grain;
    sums_.assign(size_t(chunks) + 1, 0);
    parallel_ranges(rows - first, row_grain, [&](int64_t begin, int64_t end) {
      int64_t sum = 0;
      for (int64_t row = first + begin; row < first + end; ++row) {
        if (row + ahead < first + end) __builtin_prefetch(graph_.indptr + nodes_[row + ahead], 0, 2);
        const int64_t at = graph_.indptr[nodes_[row]], whole = graph_.indptr[nodes_[row] + 1] - at;
        begins_[row] = at;
        degrees_[row] = uint32_t(whole - skips_.count(row));
        starts_[row + 1] = sum += drawn(row, whole, width);
      }
      sums_[size_t(begin / row_grain) + 1] = sum;
    });
    sums_[0] = starts_[first];
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sums_[size_t(chunk) + 1] += sums_[size_t(chunk)];
    parallel_ranges(rows - first, row_grain, [&](int64_t begin, int64_t end) {
      const int64_t before = sums_[size_t(begin / row_grain)];
      for (int64_t row = first + begin; row < first + end; ++row) starts_[row + 1] += before;
    });
  }

  // In which hop the larger batch reaches the rows that are new in `hop`. Seeds of it leave out edges in every part.
  void find_reached(int64_t hop, int64_t first, int64_t rows) {
    reached_in_.reserve(rows, hop == 1 ? 0 : first);
    for (int64_t row = first; row < rows; ++row) {
      if (row + ahead < rows) reached_.prefetch(nodes_[row + ahead]);
      reached_in_[row] = uint8_t(reached_.hop_of(nodes_[row], hop));
    }
    skips_.find_more(graph_, nodes_.data(), first, rows, [&](int64_t row) { return reached_in_[row] == 0; });
  }

  // The hop whose draw a row, new in `hop`, makes.
  [[nodiscard]] int64_t drawn_in(int64_t hop, int64_t row) const {
    return hop == 0 || reached_.empty() ? hop : int64_t(reached_in_[row]);
  }

  // How many edges a row keeps of what it draws; it has `whole` of them, those left out included.
  [[nodiscard]] int64_t drawn(int64_t row, int64_t whole, int64_t width) const {
    const int64_t at = begins_[row], degree = degrees_[row];
    if (weights_ == nullptr) return replace_ ? (degree > 0 ? width : 0) : std::min(degree, width);
    int64_t positive = 0;
    for (int64_t p = at; p < at + whole; ++p) positive += weights_[p] > 0;
    for (int64_t i = 0; i < skips_.count(row); ++i) positive -= weights_[at + skips_.begin(row)[i]] > 0;
    return replace_ ? (positive > 0 ? width : 0) : std::min(positive, width);
  }

  [[nodiscard]] batch_sizes sizes() const {
    batch_sizes out;
    out.rows.assign(ends_.begin() + 1, ends_.end());
    const int64_t inner_rows = ends_[size_t(hops_) - 1];
    out.inner_edges = starts_[inner_rows];
    for (int64_t hop = 0; hop < hops_; ++hop) {
      const int64_t rows = ends_[size_t(hop) + 1];
      int64_t edges = 0;
      for (int64_t row = 0; row < std::min(rows, inner_rows); ++row) edges += wanted(hop, row);
      if (hop + 1 == hops_) edges += starts_[rows] - starts_[inner_rows];
      out.block_edges.push_back(edges);
    }
    out.most_nodes = std::min(graph_.num_cols, num_nodes_ + out.block_edges.back());
    return out;
  }

  // The rows that are new in a hop, and their entries.
  struct hop_rows {
    int64_t hop, first, end, base, edges;
  };

  [[nodiscard]] hop_rows rows_of(int64_t hop) const {
    const int64_t first = ends_[size_t(hop)], end = ends_[size_t(hop) + 1], base = starts_[first];
    return {hop, first, end, base, starts_[end] - base};
  }

  // Memory for what a hop names, for the numbers of what is new, and for marks of so many parts of the work.
  void make_room(const hop_rows& h, int64_t parts) {
    int64_t growing = h.edges;  // entries that may name a new node
    for (int64_t row = 0; !falling_ && row < h.first; ++row) growing += starts_[row + 1] - starts_[row];
    numbers_.reserve(num_nodes_ + growing, nodes_.data(), num_nodes_, parts);
    nodes_.reserve(std::min(graph_.num_cols, num_nodes_ + growing), num_nodes_);
    named_.reserve(h.edges, 0);
    names_ = named_.data();
  }

  // Draws the rows of `hop` into (columns, offsets), their first entry at the front, and numbers what they name.
  void run_hop(int64_t hop, int32_t* columns, uint32_t* offsets) {
    const hop_rows h = rows_of(hop);
    const int64_t begun = clock_ns();
    make_room(h, num_threads());
    parallel_ranges(h.end - h.first, draw_grain, [&](int64_t begin, int64_t end) {
      draw_rows<true>(h, h.first + begin, h.first + end, offsets, thread_id());
    });
    number_hop(h, columns);
    times_.push_back({begun, clock_ns()});
  }

  // Numbers what a hop reaches, once all of it was drawn and marked.
  void number_hop(const hop_rows& h, int32_t* columns) {
    if (!falling_) for_older(h, [&](int64_t, I id) { numbers_.mark(0, &id, 1); });
    num_nodes_ = numbers_.collect(num_nodes_, nodes_.data());
    if (falling_)
      return parallel_ranges(h.edges, entry_grain, [&](int64_t begin, int64_t end) {
        numbers_.look_up(named_.data() + begin, end - begin, columns + begin);
      });
    parallel_ranges(h.end - h.first, row_grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = h.first + begin; row < h.first + end; ++row) {
        const int64_t at = starts_[row] - h.base;
        numbers_.look_up(named_.data() + at, wanted(h.hop, row), columns + at);
      }
    });
    for_older(h, [&](int64_t p, I id) { numbers_.look_up(&id, 1, columns_.data() + p); });
  }

  // The block of the last hop by ids: those of older rows as they were drawn, then those drawn now, `before` of them
  // ahead. A hop that no later one continues from needs no numbers.
  void draw_open(int64_t hop, const int64_t* indptr, I* ids, int64_t before) {
    const hop_rows h = rows_of(hop);
    const int64_t begun = clock_ns();
    outer_.reserve(h.edges, 0);
    names_ = ids + before;
    parallel_ranges(h.first, draw_grain, [&](int64_t begin, int64_t end) { copy_ids(begin, end, indptr, ids); });
    parallel_ranges(h.end - h.first, draw_grain, [&](int64_t begin, int64_t end) {
      draw_rows<false>(h, h.first + begin, h.first + end, outer_.data(), thread_id());
    });
    times_.push_back({begun, clock_ns()});
  }

  // The ids that rows [begin, end), drawn in earlier hops, lead to.
  void copy_ids(int64_t begin, int64_t end, const int64_t* indptr, I* ids) const {
    for (int64_t row = begin; row < end; ++row) {
      if (row + ahead < end) __builtin_prefetch(graph_.indices + begins_[row + ahead]);
      const I* const from = graph_.indices + begins_[row];
      const uint32_t* const places = offsets_.data() + starts_[row];
      for (int64_t k = 0; k < indptr[row + 1] - indptr[row]; ++k) ids[indptr[row] + k] = from[places[k]];
    }
  }

  // Draws rows [first, last) of a hop, a few at a time: while some are drawn, the ids of those before come out of
  // memory. `part` of the work marks them, where they will be numbered.
  template <bool Numbered>
  void draw_rows(const hop_rows& h, int64_t first, int64_t last, uint32_t* offsets, int64_t part) {
    const int64_t step = std::clamp<int64_t>(entries_under_way / widths_[size_t(h.hop)], 1, 4) * 8;
    for (int64_t row = first; row < last + step; row += step) {
      const int64_t end = std::min(last, row + step);
      for (int64_t at = row; at < end; at += 8)
        draw_eight(h.hop, at, std::min(end, at + 8), h.base, offsets, memory_[size_t(part)]);
      if (row > first) read_ids<Numbered>(h, row - step, std::min(last, row), offsets, part);
    }
  }

  template <bool Numbered>
  void read_ids(const hop_rows& h, int64_t first, int64_t last, const uint32_t* offsets, int64_t part) {
    I* const names = names_;
    for (int64_t row = first; row < last; ++row) {
      const I* const from = graph_.indices + begins_[row];
      const int64_t begin = starts_[row] - h.base, end = starts_[row + 1] - h.base;
      for (int64_t p = begin; p < end; ++p) names[p] = from[offsets[p]];
      if (Numbered && !falling_) numbers_.mark(part, names + begin, wanted(h.hop, row));
    }
    if (Numbered && falling_ && first < last)
      numbers_.mark(part, names + (starts_[first] - h.base), starts_[last] - starts_[first]);
  }

  // How many of the entries of a row drawn in it a hop reads.
  [[nodiscard]] int64_t wanted(int64_t hop, int64_t row) const {
    return std::min(starts_[row + 1] - starts_[row], limit(fanouts_[size_t(hop)]));
  }

  [[nodiscard]] uint64_t keyed_by(int64_t row) const {
    return uint64_t(keyed_ids_ == nullptr ? int64_t(nodes_[row]) : keyed_ids_[nodes_[row]]);
  }

  // Eight rows that are new in a hop.
  void draw_eight(int64_t hop, int64_t first, int64_t last, int64_t base, uint32_t* offsets, pick_memory& memory) {
    if (hop == 0 || reached_.empty()) {
      draw_lanes(hop, hop, first, last, base, offsets, memory);
    } else {
      uint32_t hops = 0;
      for (int64_t row = first; row < last; ++row) hops |= uint32_t{1} << reached_in_[row];
      for (int64_t drawn = 0; drawn <= hop; ++drawn)
        if ((hops >> drawn & 1) != 0) draw_lanes(hop, drawn, first, last, base, offsets, memory);
    }
    for (int64_t row = first; row < last; ++row) {
      uint32_t* const out = offsets + (starts_[row] - base);
      const uint32_t count = uint32_t(starts_[row + 1] - starts_[row]);
      skips_.shift(row, out, count);
      for (uint32_t i = 0; i < count; ++i) __builtin_prefetch(graph_.indices + begins_[row] + out[i], 0, 2);
    }
  }

  // What `hop`, of all that it would keep later, draws of a row without weights.
  [[nodiscard]] uint32_t count_in(int64_t hop, uint32_t degree) const {
    const int64_t width = widths_[size_t(hop)];
    return replace_ ? (degree > 0 ? uint32_t(width) : 0) : uint32_t(std::min(int64_t(degree), width));
  }

  // Those of up to eight rows, new in hop `now`, that draw as in `hop`; each lane of a vector is a row.
  void draw_lanes(int64_t now, int64_t hop, int64_t first, int64_t last, int64_t base, uint32_t* offsets,
                  pick_memory& memory) {
    const draw_key key{seed_, uint32_t(hop)};
    const int64_t least = least_[size_t(hop)];
    u32x8 n{}, k{};
    u64x8 nodes{};
    uint32_t most = 0;
    for (int64_t lane = 0; lane < last - first; ++lane) {
      const int64_t row = first + lane;
      if (drawn_in(now, row) != hop) continue;
      const uint32_t degree = degrees_[row], kept = uint32_t(starts_[row + 1] - starts_[row]);
      const uint32_t count = now == hop || weights_ != nullptr ? kept : count_in(hop, degree);
      if (weights_ != nullptr || degree > narrow_most || count > lane_draws::few) {
        draw_alone(key, row, degree, count, kept, memory, offsets + (starts_[row] - base));
      } else if (replace_ || count < degree || least < int64_t(degree)) {
        n[lane] = degree;
        k[lane] = count;
        nodes[lane] = keyed_by(row);
        most = std::max(most, count);
      } else {
        std::iota(offsets + (starts_[row] - base), offsets + (starts_[row] - base) + kept, 0u);
      }
    }
    if (most == 0) return;
    lane_draws lanes;
    u32x8 picked[lane_draws::few];
    lanes.fill(key, nodes, most);
    if (replace_)
      pick_eight<sample_kind::again>(lanes, n, k, most, picked);
    else if (least < widths_[size_t(hop)])
      pick_eight<sample_kind::ordered>(lanes, n, k, most, picked);
    else
      pick_eight<sample_kind::set>(lanes, n, k, most, picked);
    const uint32_t* const flat = reinterpret_cast<const uint32_t*>(picked);
    for (int64_t lane = 0; lane < last - first; ++lane) {
      const int64_t at = starts_[first + lane], kept = k[lane] > 0 ? starts_[first + lane + 1] - at : 0;
      for (int64_t i = 0; i < kept; ++i) offsets[at - base + i] = flat[8 * i + lane];
    }
  }

  // The first k of the `all` that a row draws by weight, or that is longer or has more draws than fit a lane.
  void draw_alone(const draw_key& key, int64_t row, uint32_t n, uint32_t all, uint32_t k, pick_memory& memory,
                  uint32_t* out) const {
    const uint64_t node = keyed_by(row);
    if (k == 0) return;
    if (weights_ != nullptr) {
      const float* const left = skips_.remaining(row, weights_ + begins_[row], n, memory.weights);
      (replace_ ? pick_weighted_again : pick_weighted_distinct)(left, n, k, key, node, memory, out);
      return;
    }
    if (!replace_ && all == n && least_[key.hop] >= int64_t(n)) return std::iota(out, out + k, 0u);
    const auto draw = [&](uint32_t i, uint64_t bound) {
      return to_below(random_u64(key.seed, key.wide(i), node), bound);
    };
    if (replace_)
      for (uint32_t i = 0; i < k; ++i) out[i] = uint32_t(draw(i, n));
    else
      pick_many(n, k, draw, memory, out);
  }

  // body(entry, id) for entries of rows of earlier hops that this hop reads and none before it did: where fan-outs
  // grow.
  template <class Body>
  void for_older(const hop_rows& h, Body&& body) const {
    for (int64_t row = 0, reached = 0; row < h.first; ++row) {
      while (row >= ends_[size_t(reached) + 1]) ++reached;
      int64_t before = 0;
      for (int64_t hop = reached; hop < h.hop; ++hop) before = std::max(before, wanted(hop, row));
      for (int64_t p = starts_[row] + before; p < starts_[row] + wanted(h.hop, row); ++p)
        body(p, graph_.indices[begins_[row] + offsets_[p]]);
    }
  }

  // Offsets of the block of `hop` over its first `rows` rows, none of the last hop's; returns their number of edges.
  int64_t write_offsets(int64_t hop, int64_t rows, int64_t* indptr) const {
    indptr[0] = 0;
    for (int64_t row = 0; row < rows; ++row) indptr[row + 1] = indptr[row] + wanted(hop, row);
    return indptr[rows];
  }

  // What the rows of a block keep of the drawn edges.
  void copy_rows(int64_t rows, const int64_t* indptr, int32_t* indices, uint32_t* offsets) const {
    parallel_ranges(rows, row_grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t count = indptr[row + 1] - indptr[row];
        std::copy_n(columns_.data() + starts_[row], count, indices + indptr[row]);
        std::copy_n(offsets_.data() + starts_[row], count, offsets + indptr[row]);
      }
    });
  }

  template <class From, class To>
  static void copy(const From* from, int64_t count, To* to, To more = 0) {
    parallel_ranges(count, entry_grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = To(from[i]) + more;
    });
  }

  csr_view<I> graph_;
  const float* weights_;
  const int64_t* keyed_ids_ = nullptr;
  Renumbering numbers_;
  row_skips skips_;
  reached_hops reached_;
  std::vector<pick_memory> memory_;

  std::vector<int64_t> fanouts_, widths_, least_;  // per hop: as asked, drawn, and the least of this and later hops
  std::vector<int64_t> sums_;                      // drawn edges before every chunk of rows
  std::vector<int64_t> ends_;                      // rows [ends_[h], ends_[h + 1]) are first reached before hop h
  bool replace_ = false, falling_ = true;          // falling: no fan-out is larger than one before it
  uint64_t seed_ = 0;
  int64_t hops_ = 0, num_nodes_ = 0;

  grown<I> nodes_;             // ids by number
  grown<int64_t> begins_;      // by row: first position in the graph
  grown<uint32_t> degrees_;    // by row: in-degree
  grown<uint8_t> reached_in_;  // by row of a part, but its seeds: the hop in which the larger batch reaches it
  grown<int64_t> starts_;      // by row: first drawn edge
  grown<int32_t> columns_;     // drawn edges of all rows but the last hop's: number of the source
  grown<uint32_t> offsets_;    // and place in the row
  grown<I> named_;             // ids that the edges of the hop under way lead to
  I* names_ = nullptr;         // where they are written: there, or in the caller's array
  grown<uint32_t> outer_;      // places in the row of what a hop without numbers draws
  std::vector<hop_times> times_;
};

}  // namespace gw
