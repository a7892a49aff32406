// A batch sampled in steps that callers may overlap: for every hop draw, number, settle.
//
// Drawing (the sampling algorithm) is cut into parts that run at once and touch nothing shared: each marks what it
// reaches for itself. Numbering is the only step that writes the table of numbers. Settling writes the arrays of a
// block, while the next hop is drawn. place() of the next hop comes with number(); neither runs beside a settle(). Same
// bits as begin() and finish(). Source: GraphTensor, section IV-D (algorithm and hash-table update apart, to relax the
// contention of locks).
#pragma once

#include "graphweft/sample.h"

namespace gw {

// What is known about a hop before it is drawn.
struct hop_sizes {
  int64_t nodes;        // numbered so far; the hop's destinations
  int64_t block_edges;  // of its block
  int64_t inner_edges;  // drawn in all hops before
};

// Arrays of a block, as in batch_arrays; with `open` the columns are ids.
struct block_arrays {
  int64_t* indptr;
  int32_t* indices;
  uint32_t* offsets;
  void* open;
};

class sampler_steps {
 public:
  sampler_steps() = default;
  sampler_steps(const sampler_steps&) = delete;
  sampler_steps& operator=(const sampler_steps&) = delete;
  virtual ~sampler_steps() = default;
  // Numbers the seeds and opens hop 0.
  virtual hop_sizes first(const int64_t* seeds, int64_t count, const std::vector<int64_t>& fanouts, bool replace,
                          uint64_t seed, int64_t parts) = 0;
  // Where the hop that was opened goes: its block for the last one, which has arrays of its own, else scratch memory.
  virtual void place(int64_t hop, const block_arrays& block) = 0;
  // Part `part` of the rows; all parts make a hop.
  virtual void draw(int64_t hop, int64_t part) = 0;
  // Numbers what was drawn and opens the next hop, where there is one.
  virtual hop_sizes number(int64_t hop) = 0;
  // Ids of the nodes [begin, end) of the batch.
  virtual void ids(int64_t begin, int64_t end, int64_t* out) const = 0;
  // Writes the block of a hop, where arrays are given.
  virtual void settle(int64_t hop, const block_arrays& block) = 0;
  // The drawn edges of all hops but the last, once they are settled.
  virtual void inner(const block_arrays& out) const = 0;
};

template <class I, class Renumbering>
class stepped_sampler final : public neighbor_sampler<I, Renumbering>, public sampler_steps {
  using base = neighbor_sampler<I, Renumbering>;

 public:
  using base::base;

  hop_sizes first(const int64_t* seeds, int64_t count, const std::vector<int64_t>& fanouts, bool replace, uint64_t seed,
                  int64_t parts) override {
    parts_ = parts;
    if (this->memory_.size() < size_t(parts)) this->memory_.resize(size_t(parts));
    this->start(seeds, count, fanouts, replace, seed);
    this->open(0);
    return sizes_of(0);
  }

  void place(int64_t hop, const block_arrays& block) override {
    const auto h = this->rows_of(hop);
    block_ = block;
    before_ = 0;
    if (hop + 1 < this->hops_) {
      this->columns_.reserve(h.base + h.edges, h.base);
      this->offsets_.reserve(h.base + h.edges, h.base);
    } else {
      before_ = this->write_offsets(hop, h.first, block.indptr);
      for (int64_t row = h.first; row <= h.end; ++row) block.indptr[row] = this->starts_[row] + before_ - h.base;
    }
    if (block.open != nullptr) {
      this->outer_.reserve(h.edges, 0);
      this->names_ = static_cast<I*>(block.open) + before_;
      return;
    }
    this->make_room(h, parts_);
  }

  void draw(int64_t hop, int64_t part) override {
    const auto h = this->rows_of(hop);
    const auto share = [&](int64_t count) { return std::pair{count * part / parts_, count * (part + 1) / parts_}; };
    if (is_open(hop)) {
      const auto [begin, end] = share(h.first);
      this->copy_ids(begin, end, block_.indptr, static_cast<I*>(block_.open));
      const auto [from, to] = share(h.end - h.first);
      this->template draw_rows<false>(h, h.first + from, h.first + to, this->outer_.data(), part);
      return;
    }
    const auto [begin, end] = share(h.end - h.first);
    this->template draw_rows<true>(h, h.first + begin, h.first + end, offsets_of(h), part);
  }

  hop_sizes number(int64_t hop) override {
    const auto h = this->rows_of(hop);
    this->number_hop(h, columns_of(h));
    if (hop + 1 == this->hops_) return {this->num_nodes_, 0, 0};
    this->open(hop + 1);
    return sizes_of(hop + 1);
  }

  void ids(int64_t begin, int64_t end, int64_t* out) const override {
    for (int64_t i = begin; i < end; ++i) out[i - begin] = int64_t(this->nodes_[i]);
  }

  void settle(int64_t hop, const block_arrays& block) override {
    if (block.indptr == nullptr) return;
    const auto h = this->rows_of(hop);
    const bool is_last = hop + 1 == this->hops_;
    if (!is_last) this->write_offsets(hop, h.end, block.indptr);
    this->copy_rows(is_last ? h.first : h.end, block.indptr, block.indices, block.offsets);
  }

  void inner(const block_arrays& out) const override {
    const int64_t rows = this->ends_[size_t(this->hops_) - 1], edges = this->starts_[rows];
    std::copy(this->starts_.data(), this->starts_.data() + rows + 1, out.indptr);
    std::copy(this->columns_.data(), this->columns_.data() + edges, out.indices);
    std::copy(this->offsets_.data(), this->offsets_.data() + edges, out.offsets);
  }

 private:
  [[nodiscard]] bool is_open(int64_t hop) const { return hop + 1 == this->hops_ && block_.open != nullptr; }
  [[nodiscard]] int32_t* columns_of(const typename base::hop_rows& h) const {
    return h.hop + 1 < this->hops_ ? this->columns_.data() + h.base : block_.indices + before_;
  }
  [[nodiscard]] uint32_t* offsets_of(const typename base::hop_rows& h) const {
    return h.hop + 1 < this->hops_ ? this->offsets_.data() + h.base : block_.offsets + before_;
  }

  [[nodiscard]] hop_sizes sizes_of(int64_t hop) const {
    const int64_t first = this->ends_[size_t(hop)], end = this->ends_[size_t(hop) + 1];
    const bool is_last = hop + 1 == this->hops_;
    int64_t edges = is_last ? this->starts_[end] - this->starts_[first] : 0;
    for (int64_t row = 0; row < (is_last ? first : end); ++row) edges += this->wanted(hop, row);
    return {this->num_nodes_, edges, this->starts_[first]};
  }

  block_arrays block_{};  // of the last hop
  int64_t before_ = 0, parts_ = 1;
};

}  // namespace gw
