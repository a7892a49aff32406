// One sampled batch over rows that are cut into segments: a segment holds the in-edges of one relation whose time lies
// in the window of the row's seed. Every segment draws for itself, by the fan-out of its relation.
//
// Without trees, nodes of a batch are the nodes of the graph, as in sample.h. With trees, every seed has a tree of its
// own: a node that two seeds reach is two nodes of the batch, each bound to the time of its seed.
//
// A row draws once, when it is first reached, as many edges of a relation as any later hop may want; hop h reads the
// first fanouts[h] of each relation. Rows draw in parallel, numbers are given in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/hash.h"
#include "graphweft/parallel.h"
#include "graphweft/pick.h"
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
};

class segment_sampler_base {
 public:
  segment_sampler_base() = default;
  segment_sampler_base(const segment_sampler_base&) = delete;
  segment_sampler_base& operator=(const segment_sampler_base&) = delete;
  virtual ~segment_sampler_base() = default;
  // rows and edges of every hop's block; totals: nodes, edges.
  virtual void begin(const segment_request& request, int64_t* rows, int64_t* edges, int64_t* totals) = 0;
  virtual void finish(const segment_arrays& out) const = 0;
};

// Up to 32 draws from one Philox vector, more from further ones.
class segment_draws {
 public:
  segment_draws(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  [[nodiscard]] uint64_t below(uint32_t i, uint64_t bound) {
    if (bound > narrow_most) return to_below(random_u64(seed_, wide | stream_, i), bound);
    const uint64_t vector = i / 32;
    if (vector != have_) {
      u64x8 blocks;
      for (uint64_t lane = 0; lane < 8; ++lane) blocks[lane] = vector * 8 + lane;
      random_blocks(seed_, stream_, blocks, words_[0], words_[1]);
      have_ = vector;
    }
    const uint32_t at = i % 32;
    const uint64_t word = words_[at / 16][at / 2 % 8];
    return (uint64_t(uint32_t(word >> (32 * (at % 2)))) * bound) >> 32;
  }

 private:
  static constexpr uint64_t wide = uint64_t{1} << 63, narrow_most = 1u << 16;
  uint64_t seed_, stream_, have_ = UINT64_MAX;
  u64x8 words_[2];
};

template <class I, class Numbers>
class segment_sampler final : public segment_sampler_base {
 public:
  // All arrays outlive the sampler. Relation r has the edge ids [bounds[r], bounds[r + 1]).
  segment_sampler(const csr_view<I>& graph, const time_order& order, std::vector<int64_t> bounds, bool trees)
      : graph_(graph), order_(order), bounds_(std::move(bounds)), trees_(trees), numbers_(graph.num_rows) {}

  void begin(const segment_request& request, int64_t* rows, int64_t* edges, int64_t* totals) override {
    request_ = request;
    auto& left_out = request_.left_out;
    std::sort(left_out.begin(), left_out.end());
    if (memory_.size() < size_t(std::max(num_threads(), 1))) memory_.resize(size_t(std::max(num_threads(), 1)));
    plan_widths();
    add_seeds();
    segments_.clear();
    first_segment_.assign(1, 0);
    skips_.clear();
    offsets_.clear();
    columns_.clear();
    named_.clear();
    ends_.assign(1, 0);
    for (int64_t hop = 0; hop < request_.hops; ++hop) run_hop(hop);
    ends_.push_back(int64_t(nodes_.size()));
    for (int64_t hop = 0; hop < request_.hops; ++hop) {
      rows[hop] = ends_[size_t(hop) + 1];
      edges[hop] = 0;
      for (int64_t s = 0; s < first_segment_[size_t(rows[hop])]; ++s) edges[hop] += kept(segments_[size_t(s)], hop);
    }
    totals[0] = int64_t(nodes_.size());
    totals[1] = int64_t(offsets_.size());
  }

  void finish(const segment_arrays& out) const override {
    std::copy(nodes_.begin(), nodes_.end(), out.n_id);
    if (out.tree != nullptr) std::copy(tree_.begin(), tree_.end(), out.tree);
    const int64_t rows = ends_[size_t(request_.hops)];
    out.indptr[0] = 0;
    for (int64_t row = 0; row < rows; ++row) out.indptr[row + 1] = row_start(row + 1);
    std::copy(columns_.begin(), columns_.end(), out.indices);
    std::copy(offsets_.begin(), offsets_.end(), out.offsets);
    for (int64_t hop = 0; hop < request_.hops; ++hop)
      if (out.block_indptr[hop] != nullptr)
        copy_block(hop, out.block_indptr[hop], out.block_indices[hop], out.block_offsets[hop]);
  }

 private:
  static constexpr int64_t grain = 256, ahead = 32, under_way = 4;  // rows

  struct segment {
    int64_t at;     // position of its first edge in the graph
    int64_t start;  // its first drawn edge
    int64_t skips;  // first of its skips
    uint32_t relation, size, drawn, numbered, skipped;
  };

  [[nodiscard]] int64_t relations() const { return int64_t(bounds_.size()) - 1; }
  [[nodiscard]] int64_t fanout(int64_t hop, int64_t relation) const {
    const int64_t value = request_.fanouts[hop * relations() + relation];
    return value < 0 ? INT64_MAX : value;
  }
  [[nodiscard]] int64_t kept(const segment& s, int64_t hop) const {
    return std::min<int64_t>(s.drawn, fanout(hop, s.relation));
  }
  [[nodiscard]] int64_t row_start(int64_t row) const {
    const auto at = size_t(first_segment_[size_t(row)]);
    return at < segments_.size() ? segments_[at].start : int64_t(offsets_.size());
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

  // What the numbers are given to: a node, or a node of a tree.
  [[nodiscard]] int64_t identity(int64_t tree, int64_t node) const {
    return trees_ ? tree * graph_.num_rows + node : node;
  }

  void add_seeds() {
    const int64_t count = request_.count;
    if (trees_) checked_mul(count, std::max<int64_t>(graph_.num_rows, 1));
    numbers_.start();
    numbers_.template reserve<int64_t>(count, nullptr, 0);
    nodes_.clear();
    tree_.clear();
    ids_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = request_.seeds[i];
      if (node < 0 || node >= graph_.num_rows)
        throw error(out_of_range, "expected seeds in [0, " + std::to_string(graph_.num_rows) + "), got " +
                                      std::to_string(node) + " at position " + std::to_string(i));
      const uint32_t number = numbers_.find_or_add(identity(i, node), uint32_t(i));
      if (number != uint32_t(i))
        throw error(bad_argument, "expected distinct seeds, got " + std::to_string(node) + " at positions " +
                                      std::to_string(number) + " and " + std::to_string(i));
      add_node(trees_ ? i : 0, node);
    }
  }

  void add_node(int64_t tree, int64_t node) {
    nodes_.push_back(node);
    if (!trees_) return;
    tree_.push_back(tree);
    ids_.push_back(identity(tree, node));
  }

  [[nodiscard]] int64_t tree_of(int64_t row) const { return trees_ ? tree_[size_t(row)] : 0; }

  void run_hop(int64_t hop) {
    const int64_t first = ends_.back(), rows = int64_t(nodes_.size());
    ends_.push_back(rows);
    const auto old_segments = int64_t(segments_.size());
    open(hop, first, rows);
    const auto edges = int64_t(offsets_.size()), before = first < rows ? row_start(first) : edges;
    require(edges < int64_t{1} << 31, "sampler: a batch has 2^31 sampled edges or more");
    parallel_ranges(rows - first, grain, [&](int64_t begin, int64_t end) {
      pick_memory& memory = memory_[size_t(thread_id())];
      // while some rows draw, the ids that those before have drawn come out of memory
      for (int64_t row = first + begin; row < first + end + under_way; ++row) {
        if (row < first + end)
          for (int64_t s = first_segment_[size_t(row)]; s < first_segment_[size_t(row) + 1]; ++s)
            draw(hop, row, segments_[size_t(s)], memory);
        if (row >= first + begin + under_way) read_ids(row - under_way);
      }
    });
    const std::vector<int64_t>& known = trees_ ? ids_ : nodes_;
    const int64_t growing = falling_ ? edges - before : edges;
    numbers_.reserve(int64_t(nodes_.size()) + growing, known.data(), int64_t(known.size()));
    int64_t row = falling_ ? first : 0;
    for (int64_t s = falling_ ? old_segments : 0; s < int64_t(segments_.size()); ++s) {
      while (first_segment_[size_t(row) + 1] <= s) ++row;
      number(hop, row, segments_[size_t(s)]);
    }
  }

  // Cuts rows [first, rows) into segments, counts what each draws, and makes room for it.
  void open(int64_t hop, int64_t first, int64_t rows) {
    const int64_t chunks = (rows - first + grain - 1) / grain;
    struct part {
      std::vector<segment> segments;
      std::vector<int64_t> counts;  // by row
      std::vector<uint32_t> skips;
    };
    std::vector<part> parts(static_cast<size_t>(chunks));
    parallel_chunks(chunks, [&](int64_t chunk) {
      part& mine = parts[size_t(chunk)];
      const int64_t last = std::min(rows, first + (chunk + 1) * grain);
      for (int64_t row = first + chunk * grain; row < last; ++row) {
        if (row + ahead < last) fetch_row(nodes_[size_t(row + ahead)]);
        if (row + ahead / 2 < last) fetch_edge_ids(nodes_[size_t(row + ahead / 2)]);
        const size_t before = mine.segments.size();
        cut(hop, row, mine.segments, mine.skips);
        mine.counts.push_back(int64_t(mine.segments.size() - before));
      }
    });
    auto edges = int64_t(offsets_.size());
    for (const part& mine : parts) {
      const auto skips = int64_t(skips_.size());
      for (segment s : mine.segments) {
        s.skips += skips;
        s.start = edges;
        edges += s.drawn;
        segments_.push_back(s);
      }
      for (const int64_t count : mine.counts) first_segment_.push_back(first_segment_.back() + count);
      skips_.insert(skips_.end(), mine.skips.begin(), mine.skips.end());
    }
    offsets_.resize(size_t(edges));
    columns_.resize(size_t(edges));
    named_.resize(size_t(edges));
  }

  // What a cut reads first: where a row lies, and the ends of its edge ids.
  void fetch_row(int64_t node) const { __builtin_prefetch(graph_.indptr + node, 0, 2); }
  void fetch_edge_ids(int64_t node) const {
    if (graph_.edge_ids == nullptr || relations() == 1) return;
    const int64_t begin = graph_.indptr[node], end = graph_.indptr[node + 1];
    if (begin == end) return;
    __builtin_prefetch(graph_.edge_ids + begin, 0, 2);
    __builtin_prefetch(graph_.edge_ids + (begin + end) / 2, 0, 2);
    __builtin_prefetch(graph_.edge_ids + end - 1, 0, 2);
  }

  // The segments of a row that draw anything.
  void cut(int64_t hop, int64_t row, std::vector<segment>& segments, std::vector<uint32_t>& skips) const {
    const int64_t node = nodes_[size_t(row)], begin = graph_.indptr[node], end = graph_.indptr[node + 1];
    if (begin == end) return;
    if (relations() == 1) return cut_time(hop, row, 0, begin, end, segments, skips);
    for (int64_t at = begin; at < end;) {
      const int64_t id = graph_.id(at);
      const int64_t relation = std::upper_bound(bounds_.begin(), bounds_.end(), id) - bounds_.begin() - 1;
      const int64_t next = end_of(at, end, bounds_[size_t(relation) + 1]);
      cut_time(hop, row, relation, at, next, segments, skips);
      at = next;
    }
  }

  // The first position in [at, end) of an edge id >= bound.
  [[nodiscard]] int64_t end_of(int64_t at, int64_t end, int64_t bound) const {
    if (graph_.edge_ids == nullptr) return std::clamp(bound, at, end);
    return std::lower_bound(graph_.edge_ids + at, graph_.edge_ids + end, bound,
                            [](I id, int64_t limit) { return int64_t(id) < limit; }) -
           graph_.edge_ids;
  }

  void cut_time(int64_t hop, int64_t row, int64_t relation, int64_t begin, int64_t end, std::vector<segment>& segments,
                std::vector<uint32_t>& skips) const {
    const int64_t width = widths_[size_t(hop * relations() + relation)];
    if (width == 0) return;
    const int64_t tree = tree_of(row);
    if (order_.times != nullptr && request_.high != nullptr) {
      const int64_t* const from = order_.times + begin;
      const int64_t* const to = order_.times + end;
      const int64_t* const late = std::upper_bound(from, to, request_.high[tree]);
      begin = std::lower_bound(from, late, request_.low[tree]) - order_.times;
      end = late - order_.times;
    }
    const size_t before = skips.size();
    find_skips(tree, nodes_[size_t(row)], relation, begin, end, skips);
    const auto skipped = int64_t(skips.size() - before), size = end - begin - skipped;
    const int64_t drawn = request_.replace ? (size > 0 ? width : 0) : std::min(size, width);
    if (drawn == 0) return skips.resize(before);
    require(drawn < int64_t{1} << 31, "sampler: a batch has 2^31 sampled edges or more");
    segments.push_back(
        {begin, 0, int64_t(before), uint32_t(relation), uint32_t(size), uint32_t(drawn), 0, uint32_t(skipped)});
  }

  void find_skips(int64_t tree, int64_t node, int64_t relation, int64_t begin, int64_t end,
                  std::vector<uint32_t>& skips) const {
    if (request_.left_out.empty()) return;
    left_out_edge key{tree, node, relation, -1};
    const auto first = std::lower_bound(request_.left_out.begin(), request_.left_out.end(), key);
    auto last = first;
    while (last != request_.left_out.end() && last->row() == key.row()) ++last;
    if (first == last) return;
    const bool timed = order_.times != nullptr && request_.high != nullptr;
    for (int64_t p = begin; p < end; ++p) {
      key.src = source(node, p);
      if ((!timed || order_.times[p] >= request_.high[tree]) && std::binary_search(first, last, key))
        skips.push_back(uint32_t(p - begin));
    }
  }

  // Offset in its row of the edge at position `p` of the order, and its source.
  [[nodiscard]] uint32_t place(int64_t node, int64_t p) const {
    return order_.places == nullptr ? uint32_t(p - graph_.indptr[node]) : order_.places[p];
  }
  [[nodiscard]] int64_t source(int64_t node, int64_t p) const {
    return graph_.indices[graph_.indptr[node] + place(node, p)];
  }

  void draw(int64_t hop, int64_t row, const segment& s, pick_memory& memory) {
    uint32_t* const out = offsets_.data() + s.start;
    const int64_t node = nodes_[size_t(row)];
    const uint32_t n = s.size, k = s.drawn;
    if (request_.recent) {
      for (uint32_t i = 0; i < k; ++i) out[i] = n - 1 - i;
    } else {
      const uint64_t tree_seed =
          trees_ ? mix64(request_.seed ^ mix64(uint64_t(request_.keys[tree_of(row)]))) : request_.seed;
      segment_draws draws(mix64(mix64(tree_seed + s.relation) + uint64_t(node)), uint64_t(hop) << 32);
      const auto below = [&](uint32_t i, uint64_t bound) { return draws.below(i, bound); };
      const bool ordered = least_[size_t(hop * relations() + s.relation)] < int64_t(k);
      if (request_.replace)
        for (uint32_t i = 0; i < k; ++i) out[i] = uint32_t(below(i, n));
      else if (k == n && !ordered)
        for (uint32_t i = 0; i < k; ++i) out[i] = i;
      else if (k > lane_draws::few)
        pick_many(n, k, below, memory, out);
      else if (ordered)
        pick_distinct<true>(n, k, below, out);
      else
        pick_distinct<false>(n, k, below, out);
    }
    const uint32_t* const skips = skips_.data() + s.skips;
    const I* const row_indices = graph_.indices + graph_.indptr[node];
    for (uint32_t i = 0; i < k; ++i) {
      const int64_t p = s.at + past_skips(out[i], skips, s.skipped);
      out[i] = place(node, p);
      __builtin_prefetch(row_indices + out[i], 0, 2);
    }
  }

  // The ids that the drawn edges of a row lead to.
  void read_ids(int64_t row) {
    const I* const from = graph_.indices + graph_.indptr[nodes_[size_t(row)]];
    for (int64_t p = row_start(row); p < row_start(row + 1); ++p) named_[size_t(p)] = from[offsets_[size_t(p)]];
  }

  // Numbers what hop `hop` reads of a segment and no earlier one did.
  void number(int64_t hop, int64_t row, segment& s) {
    const int64_t tree = tree_of(row), end = kept(s, hop);
    for (int64_t p = s.start + s.numbered; p < s.start + end; ++p) {
      const size_t next_read = size_t(p + ahead);  // of this hop's edges, or of an earlier one's: only a hint
      if (next_read < named_.size()) numbers_.prefetch(identity(tree, named_[next_read]));
      const int64_t node = named_[size_t(p)];
      const uint32_t next = uint32_t(nodes_.size()), found = numbers_.find_or_add(identity(tree, node), next);
      if (found == next) add_node(tree, node);
      columns_[size_t(p)] = int32_t(found);
    }
    s.numbered = std::max(s.numbered, uint32_t(end));
  }

  void copy_block(int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets) const {
    int64_t done = 0;
    indptr[0] = 0;
    for (int64_t row = 0; row < ends_[size_t(hop) + 1]; ++row) {
      for (int64_t s = first_segment_[size_t(row)]; s < first_segment_[size_t(row) + 1]; ++s) {
        const segment& from = segments_[size_t(s)];
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
  std::vector<int64_t> bounds_;
  bool trees_, falling_ = true;
  Numbers numbers_;
  std::vector<pick_memory> memory_;
  segment_request request_{};

  std::vector<int64_t> widths_, least_;      // [hops, relations]: drawn, and the least of this and later hops
  std::vector<int64_t> ends_;                // rows [ends_[h], ends_[h + 1]) are first reached before hop h
  std::vector<int64_t> nodes_, tree_, ids_;  // by number
  std::vector<segment> segments_;
  std::vector<int64_t> first_segment_;  // by row
  std::vector<uint32_t> skips_;
  std::vector<uint32_t> offsets_;  // drawn edges: place in the row,
  std::vector<int32_t> columns_;   // number of the source,
  std::vector<I> named_;           // and its id
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
