// Numbers of a batch for ids of the whole graph: seeds in their order, then hop by hop what is new, in ascending order
// of the ids. That order follows from the set of nodes alone, so all threads mark what they draw and all look numbers
// up; and what later reads rows of the graph by number goes forward through memory.
//
// Two forms with one interface: over all nodes of the graph, or a hash table as large as a batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/hash.h"
#include "graphweft/parallel.h"
#include "graphweft/scratch.h"

namespace gw {

constexpr int64_t block_words = 64, block_nodes = 64 * block_words;

// A set of nodes, a bit each. Of every block it is known whether anything in it was set, so that scanning and clearing
// cost what a batch touches.
class node_bits {
 public:
  explicit node_bits(int64_t blocks) : words_(blocks * block_words), touched_(size_t(blocks), 0) {
    if (blocks > 0) std::memset(words_.data(), 0, size_t(blocks * block_words) * sizeof(uint64_t));
  }

  [[nodiscard]] bool touched(int64_t block) const { return touched_[size_t(block)] != 0; }
  [[nodiscard]] bool has(int64_t id) const { return ((words_[id >> 6] >> (id & 63)) & 1) != 0; }

  void add(int64_t id) {
    words_[id >> 6] |= uint64_t{1} << (id & 63);
    touched_[size_t(id / block_nodes)] = 1;
  }

  // The words of a block, to be changed.
  uint64_t* touch(int64_t block) {
    touched_[size_t(block)] = 1;
    return words_.data() + block * block_words;
  }

  void clear(int64_t block) {
    std::memset(touch(block), 0, size_t(block_words) * sizeof(uint64_t));
    touched_[size_t(block)] = 0;
  }

  void clear() {
    for (int64_t block = 0; block < int64_t(touched_.size()); ++block)
      if (touched(block)) clear(block);
  }

 private:
  scratch<uint64_t> words_;
  std::vector<uint32_t> touched_;
};

// Over a word and some bits per node of the graph.
template <class I>
class dense_renumbering {
 public:
  explicit dense_renumbering(int64_t num_nodes)
      : blocks_((num_nodes + block_nodes - 1) / block_nodes), numbers_(num_nodes), known_(blocks_) {}

  // A new batch of so many seeds: no node has a number.
  void start(int64_t seeds) {
    known_.clear();
    for (node_bits& part : marked_) part.clear();
    reserve(seeds, nullptr, 0, 1);
  }

  // The number of a seed, which becomes `number` if it has none.
  uint32_t add_seed(int64_t id, uint32_t number) {
    if (known_.has(id)) return numbers_[id];
    known_.add(id);
    return numbers_[id] = number;
  }

  // Numbers below `most` may be given from now on, and parts [0, parts) mark; `nodes` have numbers 0 to `count`.
  void reserve(int64_t most, const I*, int64_t, int64_t parts) {
    require(most < int64_t{1} << 31, "sampler: a batch has 2^31 sampled edges or more");
    while (int64_t(marked_.size()) < parts) marked_.emplace_back(blocks_);
  }

  // Each part on one thread at a time.
  void mark(int64_t part, const I* ids, int64_t count) {
    node_bits& mine = marked_[size_t(part)];
    for (int64_t i = 0; i < count; ++i) mine.add(int64_t(ids[i]));
  }

  // Numbers what was marked and had no number, from `next` on, and unmarks all; the new ids go to nodes[next ...].
  // Returns the number after the last.
  int64_t collect(int64_t next, I* nodes) {
    found_.clear();
    for (int64_t block = 0; block < blocks_; ++block)
      if (std::any_of(marked_.begin(), marked_.end(), [&](const node_bits& part) { return part.touched(block); }))
        found_.push_back(block);
    firsts_.resize(found_.size() + 1);
    firsts_[0] = next;
    parallel_ranges(int64_t(found_.size()), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) firsts_[size_t(i) + 1] = unite(found_[size_t(i)]);
    });
    for (size_t i = 0; i < found_.size(); ++i) firsts_[i + 1] += firsts_[i];
    parallel_ranges(int64_t(found_.size()), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) number(found_[size_t(i)], firsts_[size_t(i)], nodes);
    });
    return firsts_.back();
  }

  // The numbers of ids that have one.
  void look_up(const I* ids, int64_t count, int32_t* numbers) const {
    for (int64_t i = 0; i < count; ++i) numbers[i] = int32_t(numbers_[int64_t(ids[i])]);
  }

 private:
  static constexpr int64_t grain = 8;  // blocks

  // Moves what is new in a block to the first part's marks and to what is known; how many nodes that is.
  int64_t unite(int64_t block) {
    uint64_t* const fresh = marked_.front().touch(block);
    for (size_t part = 1; part < marked_.size(); ++part) {
      if (!marked_[part].touched(block)) continue;
      const uint64_t* const other = marked_[part].touch(block);
      for (int64_t w = 0; w < block_words; ++w) fresh[w] |= other[w];
      marked_[part].clear(block);
    }
    uint64_t* const known = known_.touch(block);
    int64_t count = 0;
    for (int64_t w = 0; w < block_words; ++w) {
      fresh[w] &= ~known[w];
      known[w] |= fresh[w];
      count += __builtin_popcountll(fresh[w]);
    }
    return count;
  }

  void number(int64_t block, int64_t next, I* nodes) {
    const uint64_t* const fresh = marked_.front().touch(block);
    for (int64_t w = 0; w < block_words; ++w) {
      const int64_t first = block * block_nodes + w * 64;
      for (uint64_t bits = fresh[w]; bits != 0; bits &= bits - 1) {
        const int64_t id = first + __builtin_ctzll(bits);
        nodes[next] = I(id);
        numbers_[id] = uint32_t(next++);
      }
    }
    marked_.front().clear(block);
  }

  int64_t blocks_;
  scratch<uint32_t> numbers_;      // of known nodes
  node_bits known_;                // nodes that have a number
  std::vector<node_bits> marked_;  // by part
  std::vector<int64_t> found_;     // blocks where anything is marked
  std::vector<int64_t> firsts_;    // numbers that these begin with
};

// Over a hash table. Each part lists ids.
template <class I>
class hashed_renumbering {
 public:
  explicit hashed_renumbering(int64_t num_nodes) : numbers_(num_nodes) {}

  void start(int64_t seeds) {
    numbers_.start();
    reserve(seeds, nullptr, 0, 1);
    for (std::vector<I>& part : marked_) part.clear();
  }

  uint32_t add_seed(int64_t id, uint32_t number) { return numbers_.find_or_add(id, number); }

  void reserve(int64_t most, const I* nodes, int64_t count, int64_t parts) {
    numbers_.reserve(most, nodes, count);
    if (int64_t(marked_.size()) < parts) marked_.resize(size_t(parts));
  }

  void mark(int64_t part, const I* ids, int64_t count) {
    marked_[size_t(part)].insert(marked_[size_t(part)].end(), ids, ids + count);
  }

  int64_t collect(int64_t next, I* nodes) {
    const int64_t first = next;
    for (std::vector<I>& part : marked_) {
      const auto count = int64_t(part.size());
      for (int64_t i = 0; i < count; ++i) {
        if (i + ahead < count) numbers_.prefetch(int64_t(part[size_t(i + ahead)]));
        uint32_t number;
        if (numbers_.add(int64_t(part[size_t(i)]), uint32_t(next), number)) nodes[next++] = part[size_t(i)];
      }
      part.clear();
    }
    sort(nodes + first, next - first);
    for (int64_t i = first; i < next; ++i) {
      if (i + ahead < next) numbers_.prefetch(int64_t(nodes[i + ahead]));
      numbers_.set(int64_t(nodes[i]), uint32_t(i));
    }
    return next;
  }

  void look_up(const I* ids, int64_t count, int32_t* numbers) const {
    for (int64_t i = 0; i < count; ++i) {
      if (i + ahead < count) numbers_.prefetch(int64_t(ids[i + ahead]));
      numbers[i] = int32_t(numbers_.find(int64_t(ids[i])));
    }
  }

 private:
  static constexpr int64_t ahead = 16, digit_bits = 11, few = 256;

  // Ascending, digit by digit from the lowest; few ids by comparison.
  void sort(I* ids, int64_t count) {
    if (count < few) return std::sort(ids, ids + count);
    const uint64_t most = uint64_t(*std::max_element(ids, ids + count));
    other_.resize(size_t(count));
    I *from = ids, *to = other_.data();
    for (int64_t shift = 0; shift < 64 && (most >> shift) != 0; shift += digit_bits) {
      const auto digit = [shift](I id) { return size_t((uint64_t(id) >> shift) & ((1u << digit_bits) - 1)); };
      int64_t places[1 << digit_bits] = {};
      for (int64_t i = 0; i < count; ++i) ++places[digit(from[i])];
      int64_t before = 0;
      for (int64_t& place : places) before += std::exchange(place, before);
      for (int64_t i = 0; i < count; ++i) to[places[digit(from[i])]++] = from[i];
      std::swap(from, to);
    }
    if (from != ids) std::copy(from, from + count, ids);
  }

  hashed_numbers numbers_;
  std::vector<std::vector<I>> marked_;  // by part, repeats among them
  std::vector<I> other_;
};

}  // namespace gw
