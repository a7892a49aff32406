// One sampled batch over rows that are cut into segments: a segment holds the in-edges of one relation whose time lies
// in the window of the row's seed. Every segment draws for itself, by the fan-out of its relation.
//
// Without trees, nodes of a batch are the nodes of the graph, as in sample.h. With trees, every seed has a tree of its
// own: a node that two seeds reach is two nodes of the batch, each bound to the time of its seed.
//
// A row draws once, when it is first reached, as many edges of a relation as any later hop may want; hop h reads the
// first fanouts[h] of each relation. Segments draw in parallel, eight in the lanes of a vector; what a hop reaches is
// numbered as in sample.h: all threads mark, and new nodes have ascending ids, tree by tree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/parallel.h"
#include "graphweft/pick.h"
#include "graphweft/relation_runs.h"
#include "graphweft/renumber.h"
#include "graphweft/scratch.h"
#include "graphweft/skips.h"

namespace gw {

// Edges of a row by (relation, time, edge id): where each lies in the row, and its time. Both by position.
struct time_order {
  const uint32_t* places;  // null: edges lie as they are
  const int64_t* times;    // null: no times
};

struct left_out_edge {
  int64_t tree, dst, relation, src;
  [[nodiscard]] auto row() const { return std::tie(tree, dst, relation); }
  bool operator<(const left_out_edge& other) const {
    return std::tie(tree, dst, relation, src) < std::tie(other.tree, other.dst, other.relation, other.src);
  }
};

struct segment_request {
  int64_t count;
  const int64_t* seeds;
  const int64_t* keys;  // of the seeds' trees; null without trees
  const int64_t* low;   // a seed's edges have times in [low, high]; null without times
  const int64_t* high;
  int64_t hops;
  const int64_t* fanouts;  // [hops, relations]; negative: all
  bool replace, recent;
  uint64_t seed;
  std::vector<left_out_edge> left_out;  // with times: where they are not earlier than `high`
};

struct segment_arrays {
  int64_t* n_id;
  int64_t* tree;  // by node; null: not wanted
  int64_t* indptr;
  int32_t* indices;
  uint32_t* offsets;
  int64_t* const* block_indptr;  // null entries: the block is a beginning of the whole
  int32_t* const* block_indices;
  uint32_t* const* block_offsets;
  int64_t* run_begin;  // [rows + 1]: first run of every row; null: not wanted
  relation_run* runs;  // edges of a row that are of one relation
};

class segment_sampler_base {
 public:
  segment_sampler_base() = default;
  segment_sampler_base(const segment_sampler_base&) = delete;
  segment_sampler_base& operator=(const segment_sampler_base&) = delete;
  virtual ~segment_sampler_base() = default;
  // rows and edges of every hop's block; totals: nodes, edges, runs.
  virtual void begin(const segment_request& request, int64_t* rows, int64_t* edges, int64_t* totals) = 0;
  virtual void finish(const segment_arrays& out) const = 0;
};

// Key: what numbers are given to, a node or a node of a tree.
template <class I, class Renumbering, class Key>
class segment_sampler final : public segment_sampler_base {
 public:
  // All arrays outlive the sampler. Relation r has the edge ids [bounds[r], bounds[r + 1]); `cuts` as gw_relation_cuts
  // writes them, where there are several relations.
  segment_sampler(const csr_view<I>& graph, const time_order& order, const row_cuts& cuts, std::vector<int64_t> bounds,
                  bool trees)
      : graph_(graph),
        order_(order),
        cuts_(cuts),
        bounds_(std::move(bounds)),
        trees_(trees),
        numbers_(graph.num_rows) {}

  void begin(const segment_request& request, int64_t* rows, int64_t* edges, int64_t* totals) override {
    request_ = request;
    auto& left_out = request_.left_out;
    std::sort(left_out.begin(), left_out.end());
    if (memory_.size() < size_t(std::max(num_threads(), 1))) memory_.resize(size_t(std::max(num_threads(), 1)));
    plan_widths();
    add_seeds();
    skips_.clear();
    num_segments_ = num_edges_ = 0;
    ends_.assign(1, 0);
    for (int64_t hop = 0; hop < request_.hops; ++hop) run_hop(hop);
    ends_.push_back(num_nodes_);
    for (int64_t hop = 0; hop < request_.hops; ++hop) {
      rows[hop] = ends_[size_t(hop) + 1];
      edges[hop] = keeps_all(hop) ? row_start(rows[hop]) : 0;
      if (keeps_all(hop)) continue;
      for (int64_t s = 0; s < first_segment_[rows[hop]]; ++s) edges[hop] += kept(segments_[s], hop);
    }
    totals[0] = num_nodes_;
    totals[1] = num_edges_;
    totals[2] = num_segments_;
  }

  void finish(const segment_arrays& out) const override {
    const int64_t rows = ends_[size_t(request_.hops)];
    parallel_ranges(num_nodes_, entry_grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out.n_id[i] = node_of(i);
      if (out.tree != nullptr)
        for (int64_t i = begin; i < end; ++i) out.tree[i] = tree_of(i);
    });
    out.indptr[0] = 0;
    parallel_ranges(rows, entry_grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) out.indptr[row + 1] = row_start(row + 1);
    });
    parallel_ranges(num_edges_, entry_grain, [&](int64_t begin, int64_t end) {
      std::copy(columns_.data() + begin, columns_.data() + end, out.indices + begin);
      std::copy(offsets_.data() + begin, offsets_.data() + end, out.offsets + begin);
    });
    if (out.run_begin != nullptr) copy_runs(rows, out.run_begin, out.runs);
    for (int64_t hop = 0; hop < request_.hops; ++hop)
      if (out.block_indptr[hop] != nullptr)
        copy_block(hop, out.block_indptr[hop], out.block_indices[hop], out.block_offsets[hop]);
  }

 private:
  static constexpr int64_t row_grain = 256, entry_grain = int64_t{1} << 14, ahead = 32;
  static constexpr int64_t lanes = 8, segment_grain = 64 * lanes;
  static constexpr uint32_t narrow_most = 1u << 16;  // segments longer than that are drawn from with 64 bits

  struct segment {
    int64_t at;  // position of its first edge in the graph
    int64_t row_begin;
    int64_t start;  // its first drawn edge
    uint32_t row, relation, size, drawn;
    uint32_t numbered, skips, skipped;  // how many drawn edges have numbers; its skips
  };

  // The segments of some rows, until it is known where they go.
  struct part {
    std::vector<segment> segments;
    std::vector<uint32_t> counts;  // by row
    std::vector<uint32_t> skips;
    int64_t edges = 0, first_segment = 0, first_skip = 0, first_edge = 0;
  };

  [[nodiscard]] int64_t relations() const { return int64_t(bounds_.size()) - 1; }
  [[nodiscard]] int64_t fanout(int64_t hop, int64_t relation) const {
    const int64_t value = request_.fanouts[hop * relations() + relation];
    return value < 0 ? INT64_MAX : value;
  }
  [[nodiscard]] int64_t kept(const segment& s, int64_t hop) const {
    return std::min<int64_t>(s.drawn, fanout(hop, s.relation));
  }
  // Whether a hop reads all that rows draw, as no other one wants more.
  [[nodiscard]] bool keeps_all(int64_t hop) const {
    for (int64_t r = 0; r < relations(); ++r)
      if (fanout(hop, r) < widths_[size_t(r)]) return false;
    return true;
  }
  [[nodiscard]] int64_t row_start(int64_t row) const {
    const int64_t at = first_segment_[row];
    return at < num_segments_ ? segments_[at].start : num_edges_;
  }
  [[nodiscard]] int64_t tree_of(int64_t row) const { return trees_ ? int64_t(keys_[row]) / graph_.num_rows : 0; }
  [[nodiscard]] int64_t node_of(int64_t row) const {
    return trees_ ? int64_t(keys_[row]) % graph_.num_rows : int64_t(keys_[row]);
  }

  void plan_widths() {
    const int64_t hops = request_.hops;
    widths_.assign(size_t(hops * relations()), 0);
    least_.assign(size_t(hops * relations()), INT64_MAX);
    falling_ = true;
    for (int64_t r = 0; r < relations(); ++r) {
      int64_t most = 0, least = INT64_MAX;
      for (int64_t hop = hops - 1; hop >= 0; --hop) {
        falling_ &= fanout(hop, r) >= most;
        most = std::max(most, fanout(hop, r));
        least = std::min(least, fanout(hop, r));
        widths_[size_t(hop * relations() + r)] = most;
        least_[size_t(hop * relations() + r)] = least;
      }
    }
  }

  void add_seeds() {
    const int64_t count = request_.count;
    if (trees_) checked_mul(count, std::max<int64_t>(graph_.num_rows, 1));
    numbers_.start(count);
    keys_.reserve(count, 0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = request_.seeds[i];
      if (node < 0 || node >= graph_.num_rows)
        throw error(out_of_range, "expected seeds in [0, " + std::to_string(graph_.num_rows) + "), got " +
                                      std::to_string(node) + " at position " + std::to_string(i));
      keys_[i] = Key(trees_ ? i * graph_.num_rows + node : node);
      const uint32_t number = numbers_.add_seed(int64_t(keys_[i]), uint32_t(i));
      if (number != uint32_t(i))
        throw error(bad_argument, "expected distinct seeds, got " + std::to_string(node) + " at positions " +
                                      std::to_string(number) + " and " + std::to_string(i));
    }
    num_nodes_ = count;
  }

  void run_hop(int64_t hop) {
    const int64_t first = ends_.back(), rows = num_nodes_, old_segments = num_segments_, before = num_edges_;
    ends_.push_back(rows);
    open(hop, first, rows);
    const int64_t growing = falling_ ? num_edges_ - before : num_edges_;  // entries that may name a new node
    numbers_.reserve(num_nodes_ + growing, keys_.data(), num_nodes_, num_threads());
    keys_.reserve(num_nodes_ + growing, num_nodes_);
    parallel_ranges(num_segments_ - old_segments, segment_grain, [&](int64_t begin, int64_t end) {
      const int64_t last = old_segments + end;
      // while some segments draw, the ids that those before have drawn come out of memory
      for (int64_t s = old_segments + begin; s < last + lanes; s += lanes) {
        if (s < last) draw_eight(hop, s, std::min(last, s + lanes), memory_[size_t(thread_id())]);
        if (s >= old_segments + begin + lanes) read_ids(hop, s - lanes, std::min(last, s), thread_id());
      }
    });
    const int64_t oldest = falling_ ? old_segments : 0;
    for (int64_t s = oldest; s < old_segments; ++s)
      numbers_.mark(0, named_.data() + segments_[s].start + segments_[s].numbered, unnumbered_of(segments_[s], hop));
    num_nodes_ = numbers_.collect(num_nodes_, keys_.data());
    parallel_ranges(num_segments_ - oldest, segment_grain, [&](int64_t begin, int64_t end) {
      if (falling_) return look_up(row_start_of(oldest + begin), row_start_of(oldest + end));
      for (int64_t s = oldest + begin; s < oldest + end; ++s) {
        segment& mine = segments_[s];
        const int64_t from = mine.start + mine.numbered, count = unnumbered_of(mine, hop);
        look_up(from, from + count);
        mine.numbered += uint32_t(count);
      }
    });
  }

  // The first drawn edge of segment `s`, which may be one past the last.
  [[nodiscard]] int64_t row_start_of(int64_t s) const { return s < num_segments_ ? segments_[s].start : num_edges_; }

  // How many edges of a segment hop `hop` is the first to read.
  [[nodiscard]] int64_t unnumbered_of(const segment& s, int64_t hop) const {
    return std::max<int64_t>(0, kept(s, hop) - s.numbered);
  }

  void look_up(int64_t first, int64_t last) {
    numbers_.look_up(named_.data() + first, last - first, columns_.data() + first);
  }

  // Cuts rows [first, rows) into segments, counts what each draws, and makes room for it.
  void open(int64_t hop, int64_t first, int64_t rows) {
    const int64_t chunks = (rows - first + row_grain - 1) / row_grain;
    if (int64_t(parts_.size()) < chunks) parts_.resize(size_t(chunks));
    parallel_chunks(chunks, [&](int64_t chunk) {
      cut_rows(hop, first + chunk * row_grain, std::min(rows, first + (chunk + 1) * row_grain), parts_[size_t(chunk)]);
    });
    const int64_t old_segments = num_segments_, old_edges = num_edges_;
    auto skips = int64_t(skips_.size());
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      part& mine = parts_[size_t(chunk)];
      mine.first_segment = num_segments_;
      mine.first_edge = num_edges_;
      mine.first_skip = skips;
      num_segments_ += int64_t(mine.segments.size());
      num_edges_ += mine.edges;
      skips += int64_t(mine.skips.size());
    }
    require(num_edges_ < int64_t{1} << 31, "sampler: a batch has 2^31 sampled edges or more");
    segments_.reserve(num_segments_, old_segments);
    first_segment_.reserve(rows + 1, hop == 0 ? 0 : first + 1);
    first_segment_[first] = old_segments;
    skips_.resize(size_t(skips));
    offsets_.reserve(num_edges_, old_edges);
    columns_.reserve(num_edges_, old_edges);
    named_.reserve(num_edges_, old_edges);
    parallel_chunks(chunks, [&](int64_t chunk) { place_part(parts_[size_t(chunk)], first + chunk * row_grain); });
  }

  void cut_rows(int64_t hop, int64_t first, int64_t last, part& mine) const {
    mine.segments.clear();
    mine.counts.clear();
    mine.skips.clear();
    mine.edges = 0;
    for (int64_t row = first; row < last; ++row) {
      if (row + ahead < last) fetch_row(node_of(row + ahead));
      if (row + ahead / 2 < last) fetch_cuts(node_of(row + ahead / 2));
      const size_t before = mine.segments.size();
      cut(hop, row, mine);
      mine.counts.push_back(uint32_t(mine.segments.size() - before));
    }
  }

  // Writes the segments of rows from `first` on to their places.
  void place_part(const part& mine, int64_t first) {
    int64_t edges = mine.first_edge, at = mine.first_segment, row = first;
    for (segment s : mine.segments) {
      s.skips += uint32_t(mine.first_skip);
      s.start = edges;
      edges += s.drawn;
      segments_[at++] = s;
    }
    at = mine.first_segment;
    for (const uint32_t count : mine.counts) first_segment_[++row] = at += count;
    std::copy(mine.skips.begin(), mine.skips.end(), skips_.begin() + mine.first_skip);
  }

  // What a cut reads first: where a row lies and where its cuts do, and then these.
  void fetch_row(int64_t node) const {
    __builtin_prefetch(graph_.indptr + node, 0, 2);
    if (cuts_.begin != nullptr) __builtin_prefetch(cuts_.begin + node, 0, 2);
  }
  void fetch_cuts(int64_t node) const {
    if (cuts_.begin != nullptr) __builtin_prefetch(cuts_.runs + cuts_.begin[node], 0, 2);
  }

  // The segments of a row that draw anything.
  void cut(int64_t hop, int64_t row, part& mine) const {
    const int64_t node = node_of(row), begin = graph_.indptr[node], end = graph_.indptr[node + 1];
    if (begin == end) return;
    if (relations() == 1) return cut_time(hop, row, 0, begin, end, mine);
    int64_t at = begin;
    for (int64_t i = cuts_.begin[node]; i < cuts_.begin[node + 1]; ++i) {
      const relation_run& run = cuts_.runs[i];
      cut_time(hop, row, run.relation, at, at + run.count, mine);
      at += run.count;
    }
  }

  void cut_time(int64_t hop, int64_t row, int64_t relation, int64_t begin, int64_t end, part& mine) const {
    const int64_t width = widths_[size_t(hop * relations() + relation)];
    if (width == 0) return;
    const int64_t node = node_of(row), tree = tree_of(row);
    if (order_.times != nullptr && request_.high != nullptr) {
      const int64_t* const from = order_.times + begin;
      const int64_t* const to = order_.times + end;
      const int64_t* const late = std::upper_bound(from, to, request_.high[tree]);
      begin = std::lower_bound(from, late, request_.low[tree]) - order_.times;
      end = late - order_.times;
    }
    const size_t before = mine.skips.size();
    find_skips(tree, node, relation, begin, end, mine.skips);
    const auto skipped = int64_t(mine.skips.size() - before), size = end - begin - skipped;
    const int64_t drawn = request_.replace ? (size > 0 ? width : 0) : std::min(size, width);
    if (drawn == 0) return mine.skips.resize(before);
    require(drawn < int64_t{1} << 31, "sampler: a batch has 2^31 sampled edges or more");
    mine.edges += drawn;
    mine.segments.push_back({begin, graph_.indptr[node], 0, uint32_t(row), uint32_t(relation), uint32_t(size),
                             uint32_t(drawn), 0, uint32_t(before), uint32_t(skipped)});
  }

  void find_skips(int64_t tree, int64_t node, int64_t relation, int64_t begin, int64_t end,
                  std::vector<uint32_t>& skips) const {
    if (request_.left_out.empty()) return;
    left_out_edge wanted{tree, node, relation, -1};
    const auto first = std::lower_bound(request_.left_out.begin(), request_.left_out.end(), wanted);
    auto last = first;
    while (last != request_.left_out.end() && last->row() == wanted.row()) ++last;
    if (first == last) return;
    const bool timed = order_.times != nullptr && request_.high != nullptr;
    for (int64_t p = begin; p < end; ++p) {
      wanted.src = graph_.indices[order_.places == nullptr ? p : graph_.indptr[node] + order_.places[p]];
      if ((!timed || order_.times[p] >= request_.high[tree]) && std::binary_search(first, last, wanted))
        skips.push_back(uint32_t(p - begin));
    }
  }

  // What the draws of a segment are keyed by, beside seed and hop.
  [[nodiscard]] uint64_t keyed_by(const segment& s) const {
    const uint64_t seed =
        trees_ ? mix64(request_.seed ^ mix64(uint64_t(request_.keys[tree_of(s.row)]))) : request_.seed;
    return mix64(mix64(seed + s.relation) + uint64_t(node_of(s.row)));
  }

  // Up to eight segments that are new in a hop: places in their rows of what they draw.
  void draw_eight(int64_t hop, int64_t first, int64_t last, pick_memory& memory) {
    u32x8 n{}, sets{}, beginnings{};
    u64x8 names{};
    uint32_t most_set = 0, most_beginning = 0;
    for (int64_t lane = 0; lane < last - first; ++lane) {
      const segment& s = segments_[first + lane];
      uint32_t* const out = offsets_.data() + s.start;
      const bool ordered = least_[size_t(hop * relations() + s.relation)] < int64_t(s.drawn);
      if (request_.recent) {
        for (uint32_t i = 0; i < s.drawn; ++i) out[i] = s.size - 1 - i;
      } else if (!request_.replace && s.drawn == s.size && !ordered) {
        std::iota(out, out + s.drawn, 0u);
      } else if (s.size > narrow_most || s.drawn > lane_draws::few) {
        draw_alone({request_.seed, uint32_t(hop)}, s, memory, out);
      } else {
        n[lane] = s.size;
        names[lane] = keyed_by(s);
        (ordered ? beginnings : sets)[lane] = s.drawn;
        uint32_t& most = ordered ? most_beginning : most_set;
        most = std::max(most, s.drawn);
      }
    }
    if (most_set + most_beginning > 0) {
      lane_draws draws;
      draws.fill({request_.seed, uint32_t(hop)}, names, std::max(most_set, most_beginning));
      if (request_.replace) {
        pick_lanes<sample_kind::again>(draws, n, sets + beginnings, std::max(most_set, most_beginning), first, last);
      } else {
        if (most_set > 0) pick_lanes<sample_kind::set>(draws, n, sets, most_set, first, last);
        if (most_beginning > 0) pick_lanes<sample_kind::ordered>(draws, n, beginnings, most_beginning, first, last);
      }
    }
    for (int64_t s = first; s < last; ++s) to_places(segments_[s]);
  }

  template <sample_kind Kind>
  void pick_lanes(const lane_draws& draws, u32x8 n, u32x8 k, uint32_t most, int64_t first, int64_t last) {
    u32x8 picked[lane_draws::few];
    pick_eight<Kind>(draws, n, k, most, picked);
    const uint32_t* const flat = reinterpret_cast<const uint32_t*>(picked);
    for (int64_t lane = 0; lane < last - first; ++lane) {
      uint32_t* const out = offsets_.data() + segments_[first + lane].start;
      for (uint32_t i = 0; i < k[lane]; ++i) out[i] = flat[lanes * i + lane];
    }
  }

  // A segment that is longer, or has more draws, than fit a lane.
  void draw_alone(const draw_key& by, const segment& s, pick_memory& memory, uint32_t* out) const {
    const uint64_t name = keyed_by(s);
    const auto below = [&](uint32_t i, uint64_t bound) {
      return to_below(random_u64(by.seed, by.wide(i), name), bound);
    };
    if (!request_.replace) return pick_many(s.size, s.drawn, below, memory, out);
    for (uint32_t i = 0; i < s.drawn; ++i) out[i] = uint32_t(below(i, s.size));
  }

  // From places in the segment to places in the row.
  void to_places(const segment& s) {
    uint32_t* const out = offsets_.data() + s.start;
    const uint32_t* const skips = skips_.data() + s.skips;
    if (s.skipped > 0)
      for (uint32_t i = 0; i < s.drawn; ++i) out[i] = past_skips(out[i], skips, s.skipped);
    const auto before = uint32_t(s.at - s.row_begin);
    for (uint32_t i = 0; i < s.drawn; ++i)
      out[i] = order_.places == nullptr ? before + out[i] : order_.places[s.at + out[i]];
    for (uint32_t i = 0; i < s.drawn; ++i) __builtin_prefetch(graph_.indices + s.row_begin + out[i], 0, 2);
  }

  // The ids that drawn edges lead to, and marks of those that the hop reads.
  void read_ids(int64_t hop, int64_t first, int64_t last, int64_t part) {
    for (int64_t at = first; at < last; ++at) {
      const segment& s = segments_[at];
      const I* const from = graph_.indices + s.row_begin;
      const int64_t tree = tree_of(s.row) * graph_.num_rows;
      for (int64_t p = s.start; p < s.start + s.drawn; ++p) named_[p] = Key(from[offsets_[p]] + tree);
      if (!falling_) numbers_.mark(part, named_.data() + s.start, kept(s, hop));
    }
    if (falling_ && first < last) {
      const int64_t begin = segments_[first].start;
      numbers_.mark(part, named_.data() + begin, row_start_of(last) - begin);
    }
  }

  void copy_runs(int64_t rows, int64_t* run_begin, relation_run* runs) const {
    std::copy(first_segment_.data(), first_segment_.data() + rows + 1, run_begin);
    parallel_ranges(num_segments_, entry_grain, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) runs[s] = {segments_[s].relation, segments_[s].drawn};
    });
  }

  void copy_block(int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets) const {
    int64_t done = 0;
    indptr[0] = 0;
    for (int64_t row = 0; row < ends_[size_t(hop) + 1]; ++row) {
      for (int64_t s = first_segment_[row]; s < first_segment_[row + 1]; ++s) {
        const segment& from = segments_[s];
        const int64_t count = kept(from, hop);
        std::copy_n(columns_.data() + from.start, count, indices + done);
        std::copy_n(offsets_.data() + from.start, count, offsets + done);
        done += count;
      }
      indptr[row + 1] = done;
    }
  }

  csr_view<I> graph_;
  time_order order_;
  row_cuts cuts_;
  std::vector<int64_t> bounds_;
  bool trees_, falling_ = true;  // falling: no fan-out is larger than one before it
  Renumbering numbers_;
  std::vector<pick_memory> memory_;
  segment_request request_{};

  std::vector<int64_t> widths_, least_;  // [hops, relations]: drawn, and the least of this and later hops
  std::vector<int64_t> ends_;            // rows [ends_[h], ends_[h + 1]) are first reached before hop h
  int64_t num_nodes_ = 0, num_segments_ = 0, num_edges_ = 0;
  std::vector<part> parts_;
  grown<Key> keys_;  // by number
  grown<segment> segments_;
  grown<int64_t> first_segment_;  // by row
  std::vector<uint32_t> skips_;
  grown<uint32_t> offsets_;  // drawn edges: place in the row,
  grown<int32_t> columns_;   // number of the source,
  grown<Key> named_;         // and what is numbered
};

// Fills `places` and `sorted`: the edges of every row by (relation, time, edge id). `times` by edge id.
template <class I>
void order_by_time(const csr_view<I>& graph, const std::vector<int64_t>& bounds, const int64_t* times, uint32_t* places,
                   int64_t* sorted) {
  parallel_ranges(graph.num_rows, 1024, [&](int64_t begin, int64_t end) {
    std::vector<std::pair<int64_t, uint32_t>> row_edges;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = graph.indptr[row], count = graph.indptr[row + 1] - first;
      require(count < int64_t(UINT32_MAX), "sampler: a row has 2^32 entries");
      row_edges.clear();
      for (int64_t i = 0; i < count; ++i) row_edges.emplace_back(times[graph.id(first + i)], uint32_t(i));
      for (int64_t at = 0; at < count;) {  // edge ids ascend, so relations follow each other
        int64_t next = count;
        if (bounds.size() > 2) {
          const auto bound = *std::upper_bound(bounds.begin(), bounds.end(), graph.id(first + at));
          next = at;
          while (next < count && graph.id(first + next) < bound) ++next;
        }
        std::sort(row_edges.begin() + at, row_edges.begin() + next);
        at = next;
      }
      for (int64_t i = 0; i < count; ++i) {
        sorted[first + i] = row_edges[size_t(i)].first;
        places[first + i] = row_edges[size_t(i)].second;
      }
    }
  });
}

}  // namespace gw
