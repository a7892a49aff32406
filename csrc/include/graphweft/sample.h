// One sampled batch: hop by hop, every new node draws in-edges, and the nodes those come from are numbered in the order
// in which they first occur.
//
// A node draws once, in the hop that first reaches it, as many edges as any later hop may want; hop h then reads the
// first fanouts[h] of them, a uniform sample as well. So every block has min(in-degree, fan-out) edges per destination,
// and an edge is in the batch once.
//
// With one thread, drawing and numbering alternate in small steps, each fetching memory for the next. With more, all
// draw and one of them numbers; see draw_in_parallel. Both give the same numbers.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/hash.h"
#include "graphweft/parallel.h"
#include "graphweft/pick.h"
#include "graphweft/scratch.h"
#include "graphweft/skips.h"

namespace gw {

// Scratch memory that grows and keeps its contents.
template <class T>
class grown {
 public:
  void reserve(int64_t count, int64_t kept) {
    if (count <= capacity_) return;
    const int64_t wanted = std::max(count, capacity_ + capacity_ / 2);
    auto larger = std::make_unique<scratch<T>>(wanted);
    if (kept > 0) std::copy(data(), data() + kept, larger->data());
    memory_ = std::move(larger);
    capacity_ = wanted;
  }
  [[nodiscard]] T* data() const { return memory_ ? memory_->data() : nullptr; }
  T& operator[](int64_t i) const { return (*memory_)[i]; }

 private:
  std::unique_ptr<scratch<T>> memory_;
  int64_t capacity_ = 0;
};

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
  virtual batch_sizes begin(const int64_t* seeds, int64_t count, const std::vector<int64_t>& fanouts, bool replace,
                            uint64_t seed) = 0;
  virtual int64_t finish(const batch_arrays& out) = 0;
  // When each hop of the last batch was drawn and numbered.
  virtual const std::vector<hop_times>& times() const = 0;
};

template <class I, class Numbers>
class neighbor_sampler : public sampler {
 public:
  // `weights` by position, or null; both outlive the sampler.
  neighbor_sampler(const csr_view<I>& graph, const float* weights)
      : graph_(graph), weights_(weights), numbers_(graph.num_rows), memory_(size_t(std::max(num_threads(), 1))) {}

  void exclude(int64_t count, const int64_t* src, const int64_t* dst) override { skips_.set(count, src, dst); }

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
    const int64_t shift = before - starts_[inner_rows];
    for (int64_t row = inner_rows; row <= ends_[size_t(hops_)]; ++row) indptr[row] = starts_[row] + shift;
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
    std::copy(starts_.data(), starts_.data() + inner_rows + 1, out.inner_indptr);
    std::copy(columns_.data(), columns_.data() + starts_[inner_rows], out.inner_indices);
    std::copy(offsets_.data(), offsets_.data() + starts_[inner_rows], out.inner_offsets);
    parallel_ranges(num_nodes_, entry_grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out.n_id[i] = int64_t(nodes_[i]);
    });
    return num_nodes_;
  }

 protected:
  static constexpr int64_t entries_under_way = 24, draw_grain = 512, entry_grain = int64_t{1} << 14, ahead = 32,
                           near = 16;
  static constexpr uint32_t narrow_most = 1u << 16;  // rows longer than that are drawn from with 64 bits

  [[nodiscard]] static int64_t limit(int64_t fanout) { return fanout < 0 ? INT64_MAX : fanout; }

  void start(const int64_t* seeds, int64_t count, const std::vector<int64_t>& fanouts, bool replace, uint64_t seed) {
    fanouts_ = fanouts;
    replace_ = replace;
    seed_ = seed;
    hops_ = int64_t(fanouts.size());
    times_.clear();
    add_seeds(seeds, count);
    skips_.find(graph_, nodes_.data(), count);
    ends_.assign(1, 0);
    plan_widths();
  }

  void add_seeds(const int64_t* seeds, int64_t count) {
    numbers_.start();
    numbers_.template reserve<I>(count, nullptr, 0);
    nodes_.reserve(count, 0);
    for (int64_t i = 0; i < count; ++i) {
      if (seeds[i] < 0 || seeds[i] >= graph_.num_rows)
        throw error(out_of_range, "expected seeds in [0, " + std::to_string(graph_.num_rows) + "), got " +
                                      std::to_string(seeds[i]) + " at position " + std::to_string(i));
      const uint32_t number = numbers_.find_or_add(seeds[i], uint32_t(i));
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
    const int64_t width = widths_[size_t(hop)];
    parallel_ranges(rows - first, entry_grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = first + begin; row < first + end; ++row) {
        if (row + ahead < first + end) __builtin_prefetch(graph_.indptr + nodes_[row + ahead], 0, 2);
        const int64_t at = graph_.indptr[nodes_[row]], whole = graph_.indptr[nodes_[row] + 1] - at;
        begins_[row] = at;
        degrees_[row] = uint32_t(whole - skips_.count(row));
        starts_[row + 1] = drawn(row, whole, width);
      }
    });
    for (int64_t row = first; row < rows; ++row) starts_[row + 1] += starts_[row];
  }

  // How many edges a row draws; it has `whole` of them, those left out included.
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
      for (int64_t row = 0; row < std::min(rows, inner_rows); ++row)
        edges += std::min(starts_[row + 1] - starts_[row], limit(fanouts_[size_t(hop)]));
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

  // Memory for what a hop names, and for the numbers of what is new.
  void make_room(const hop_rows& h) {
    int64_t growing = h.edges;  // entries that may name a new node
    for (int64_t row = 0; !falling_ && row < h.first; ++row) growing += starts_[row + 1] - starts_[row];
    numbers_.reserve(num_nodes_ + growing, nodes_.data(), num_nodes_);
    nodes_.reserve(std::min(graph_.num_cols, num_nodes_ + growing) + 1, num_nodes_);  // one is written ahead
    named_.reserve(h.edges, 0);
    names_ = named_.data();
  }

  // Draws the rows of `hop` into (columns, offsets), their first entry at the front, and numbers what they name.
  void run_hop(int64_t hop, int32_t* columns, uint32_t* offsets) {
    const hop_rows h = rows_of(hop);
    const int64_t begun = clock_ns();
    make_room(h);
    if (!falling_) number_older(hop, h.first);
    if (num_threads() > 1 && h.edges > 2 * entry_grain)
      draw_in_parallel(hop, h.first, h.end, h.base, columns, offsets);
    else
      draw_rows(hop, h.first, h.end, h.base, offsets, memory_.front(),
                [&](int64_t begin, int64_t end) { number_rows(hop, begin, end, h.base, columns); });
    times_.push_back({begun, clock_ns()});
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
      draw_ids(h, h.first + begin, h.first + end, memory_[size_t(thread_id())]);
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

  void draw_ids(const hop_rows& h, int64_t begin, int64_t end, pick_memory& memory) {
    draw_rows<false>(h.hop, begin, end, h.base, outer_.data(), memory, [](int64_t, int64_t) {});
  }

  // Draws rows [first, last) of `hop` a few at a time and hands them to `use`: while some are drawn, the ids of those
  // before come out of memory, and the numbers of those before them.
  template <bool Numbered = true, class Use>
  void draw_rows(int64_t hop, int64_t first, int64_t last, int64_t base, uint32_t* offsets, pick_memory& memory,
                 Use&& use) {
    const int64_t step = std::clamp<int64_t>(entries_under_way / widths_[size_t(hop)], 1, 4) * 8;
    for (int64_t row = first; row < last + 2 * step; row += step) {
      const int64_t drawn = std::min(last, row), read = std::min(last, row - step), used = row - 2 * step;
      for (int64_t at = drawn; at < std::min(last, row + step); at += 8)
        draw_eight(hop, at, std::min(last, at + 8), base, offsets, memory);
      if (read >= first) read_ids<Numbered>(read, drawn, base, offsets);
      if (used >= first) use(used, read);
    }
  }

  template <bool Numbered>
  void read_ids(int64_t first, int64_t last, int64_t base, const uint32_t* offsets) {
    for (int64_t row = first; row < last; ++row) {
      const I* const from = graph_.indices + begins_[row];
      for (int64_t p = starts_[row] - base; p < starts_[row + 1] - base; ++p) {
        names_[p] = from[offsets[p]];
        if constexpr (Numbered) numbers_.prefetch(int64_t(names_[p]));
      }
    }
  }

  // Eight rows at once; each lane of a vector is a row.
  void draw_eight(int64_t hop, int64_t first, int64_t last, int64_t base, uint32_t* offsets, pick_memory& memory) {
    const draw_key key{seed_, uint32_t(hop)};
    const int64_t least = least_[size_t(hop)];
    u32x8 n{}, k{};
    u64x8 nodes{};
    uint32_t most = 0;
    for (int64_t lane = 0; lane < last - first; ++lane) {
      const int64_t row = first + lane;
      const uint32_t degree = degrees_[row], count = uint32_t(starts_[row + 1] - starts_[row]);
      if (weights_ != nullptr || degree > narrow_most || count > lane_draws::few) {
        draw_alone(key, row, degree, count, memory, offsets + (starts_[row] - base));
      } else if (replace_ || count < degree || least < int64_t(degree)) {
        n[lane] = degree;
        k[lane] = count;
        nodes[lane] = uint64_t(nodes_[row]);
        most = std::max(most, count);
      } else {
        std::iota(offsets + (starts_[row] - base), offsets + (starts_[row] - base) + count, 0u);
      }
    }
    if (most > 0) {
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
        uint32_t* const out = offsets + (starts_[first + lane] - base);
        for (uint32_t i = 0; i < k[lane]; ++i) out[i] = flat[8 * i + lane];
      }
    }
    for (int64_t row = first; row < last; ++row) {
      uint32_t* const out = offsets + (starts_[row] - base);
      const uint32_t count = uint32_t(starts_[row + 1] - starts_[row]);
      skips_.shift(row, out, count);
      for (uint32_t i = 0; i < count; ++i) __builtin_prefetch(graph_.indices + begins_[row] + out[i], 0, 2);
    }
  }

  // A row by weight, or longer or with more draws than fit a lane.
  void draw_alone(const draw_key& key, int64_t row, uint32_t n, uint32_t k, pick_memory& memory, uint32_t* out) const {
    const uint64_t node = uint64_t(nodes_[row]);
    if (k == 0) return;
    if (weights_ != nullptr) {
      const float* const left = skips_.remaining(row, weights_ + begins_[row], n, memory.weights);
      (replace_ ? pick_weighted_again : pick_weighted_distinct)(left, n, k, key, node, memory, out);
      return;
    }
    if (!replace_ && k == n && least_[key.hop] >= int64_t(n)) return std::iota(out, out + k, 0u);
    const auto draw = [&](uint32_t i, uint64_t bound) {
      return to_below(random_u64(key.seed, key.wide(i), node), bound);
    };
    if (replace_)
      for (uint32_t i = 0; i < k; ++i) out[i] = uint32_t(draw(i, n));
    else
      pick_many(n, k, draw, memory, out);
  }

  // Numbers what the first fanouts[hop] entries of rows [first, last) name; the others wait for a later hop.
  void number_rows(int64_t hop, int64_t first, int64_t last, int64_t base, int32_t* columns) {
    if (falling_) return number_entries(starts_[first] - base, starts_[last] - base, columns);
    for (int64_t row = first; row < last; ++row) {
      const int64_t from = starts_[row] - base, end = starts_[row + 1] - base;
      number_entries(from, from + std::min(end - from, limit(fanouts_[size_t(hop)])), columns);
    }
  }

  void number_entries(int64_t from, int64_t end, int32_t* columns) {
    int64_t next = num_nodes_;
    I* const nodes = nodes_.data();
    for (int64_t p = from; p < end; ++p) {
      const I id = named_[p];
      numbers_.prefetch_near(int64_t(named_[std::min(p + near, end - 1)]));
      uint32_t number;
      nodes[next] = id;
      next += numbers_.add(int64_t(id), uint32_t(next), number);
      columns[p] = int32_t(number);
    }
    num_nodes_ = next;
  }

  // Rows of earlier hops whose sample this hop reads further than any before: fan-outs that grow.
  void number_older(int64_t hop, int64_t rows) {
    for (int64_t row = 0, reached = 0; row < rows; ++row) {
      while (row >= ends_[size_t(reached) + 1]) ++reached;
      int64_t before = 0;
      for (int64_t h = reached; h < hop; ++h) before = std::max(before, limit(fanouts_[size_t(h)]));
      const int64_t count = starts_[row + 1] - starts_[row];
      const int64_t end = starts_[row] + std::min(count, limit(fanouts_[size_t(hop)]));
      for (int64_t p = starts_[row] + std::min(before, count); p < end; ++p) {
        const I id = graph_.indices[begins_[row] + offsets_[p]];
        const uint32_t number = numbers_.find_or_add(int64_t(id), uint32_t(num_nodes_));
        if (int64_t(number) == num_nodes_) nodes_[num_nodes_++] = id;
        columns_[p] = int32_t(number);
      }
    }
  }

  // As run_hop, on several threads: all draw chunks of rows, and one of them numbers the chunks in order as they become
  // ready. Numbering is a quarter of the work, in whose caches the table of numbers then stays.
  void draw_in_parallel(int64_t hop, int64_t first, int64_t rows, int64_t base, int32_t* columns, uint32_t* offsets) {
    const int64_t chunks = (rows - first + draw_grain - 1) / draw_grain, shares = num_threads();
    const int64_t per_share = (chunks + shares - 1) / shares;
    const auto begin_of = [&](int64_t chunk) { return std::min(rows, first + chunk * draw_grain); };
    std::vector<std::atomic<bool>> ready(static_cast<size_t>(chunks));
    for (std::atomic<bool>& flag : ready) flag.store(false, std::memory_order_relaxed);
    int64_t numbered = 0;
    const auto number_ready = [&] {
      for (; numbered < chunks && ready[size_t(numbered)].load(std::memory_order_acquire); ++numbered) {
        const int64_t begin = begin_of(numbered), end = begin_of(numbered + 1);
        for (int64_t p = starts_[begin] - base; p < starts_[end] - base; ++p) numbers_.prefetch(int64_t(named_[p]));
        number_rows(hop, begin, end, base, columns);
      }
    };
    // a thread's share is every so-manieth chunk, so that those at the front are ready first
    parallel_chunks(per_share * shares, [&](int64_t place) {
      const int64_t chunk = place % per_share * shares + place / per_share;
      if (chunk >= chunks) return;
      draw_rows<false>(hop, begin_of(chunk), begin_of(chunk + 1), base, offsets, memory_[size_t(thread_id())],
                       [](int64_t, int64_t) {});
      ready[size_t(chunk)].store(true, std::memory_order_release);
      if (thread_id() == 0) number_ready();
    });
    number_ready();
  }

  // Offsets of the block of `hop` over its first `rows` rows, none of the last hop's; returns their number of edges.
  int64_t write_offsets(int64_t hop, int64_t rows, int64_t* indptr) const {
    const int64_t most = limit(fanouts_[size_t(hop)]);
    indptr[0] = 0;
    for (int64_t row = 0; row < rows; ++row)
      indptr[row + 1] = indptr[row] + std::min(starts_[row + 1] - starts_[row], most);
    return indptr[rows];
  }

  // What the rows of a block keep of the drawn edges.
  void copy_rows(int64_t rows, const int64_t* indptr, int32_t* indices, uint32_t* offsets) const {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t count = indptr[row + 1] - indptr[row];
      std::copy_n(columns_.data() + starts_[row], count, indices + indptr[row]);
      std::copy_n(offsets_.data() + starts_[row], count, offsets + indptr[row]);
    }
  }

  csr_view<I> graph_;
  const float* weights_;
  Numbers numbers_;
  row_skips skips_;
  std::vector<pick_memory> memory_;

  std::vector<int64_t> fanouts_, widths_, least_;  // per hop: as asked, drawn, and the least of this and later hops
  std::vector<int64_t> ends_;                      // rows [ends_[h], ends_[h + 1]) are first reached before hop h
  bool replace_ = false, falling_ = true;          // falling: no fan-out is larger than one before it
  uint64_t seed_ = 0;
  int64_t hops_ = 0, num_nodes_ = 0;

  grown<I> nodes_;           // ids by number
  grown<int64_t> begins_;    // by row: first position in the graph
  grown<uint32_t> degrees_;  // by row: in-degree
  grown<int64_t> starts_;    // by row: first drawn edge
  grown<int32_t> columns_;   // drawn edges of all rows but the last hop's: number of the source
  grown<uint32_t> offsets_;  // and place in the row
  grown<I> named_;           // ids that the edges of the hop under way lead to
  I* names_ = nullptr;       // where they are written: there, or in the caller's array
  grown<uint32_t> outer_;    // places in the row of what a hop without numbers draws
  std::vector<hop_times> times_;
};

}  // namespace gw
