// Pieces of a structure given by node ids: the rows of some nodes less what leads elsewhere, the nodes that some rows
// lead to, and ids without repeats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/hash.h"
#include "graphweft/parallel.h"

namespace gw {

// An entry that was kept: number of its column, and place in its row.
struct kept_entry {
  int32_t column;
  uint32_t offset;
};

inline void require_node(int64_t id, int64_t bound, int64_t position) {
  if (id < 0 || id >= bound)
    throw error(out_of_range, "expected node ids in [0, " + std::to_string(bound) + "), got " + std::to_string(id) +
                                  " at position " + std::to_string(position));
}

class subset {
 public:
  subset() = default;
  subset(const subset&) = delete;
  subset& operator=(const subset&) = delete;
  virtual ~subset() = default;

  // `ids` without repeats, in order of first occurrence, and the place of each there; returns how many.
  virtual int64_t distinct(int64_t count, const int64_t* ids, int64_t* out, int64_t* places) = 0;
  // Keeps the entries of `rows` whose column is in `columns`; returns how many. Column i gets number numbers[i], or i.
  virtual int64_t slice(int64_t num_rows, const int64_t* rows, int64_t num_columns, const int64_t* columns,
                        const int64_t* numbers) = 0;
  virtual void write_slice(int64_t* indptr, int32_t* indices, uint32_t* offsets) const = 0;
  // The columns of `rows` by first occurrence, each with the sum over its entries of factors[row] * weight^2.
  virtual int64_t candidates(int64_t num_rows, const int64_t* rows, const double* factors, const float* weights) = 0;
  virtual void write_candidates(int64_t* ids, double* sums) const = 0;
};

template <class I, class Numbers>
class subset_of final : public subset {
 public:
  explicit subset_of(const csr_view<I>& graph) : graph_(graph), numbers_(std::max(graph.num_rows, graph.num_cols)) {}

  int64_t distinct(int64_t count, const int64_t* ids, int64_t* out, int64_t* places) override {
    numbers_.start();
    numbers_.template reserve<I>(count, nullptr, 0);
    int64_t made = 0;
    for (int64_t i = 0; i < count; ++i) {
      require_node(ids[i], graph_.num_rows, i);
      const uint32_t number = numbers_.find_or_add(ids[i], uint32_t(made));
      if (int64_t(number) == made) out[made++] = ids[i];
      places[i] = int64_t(number);
    }
    return made;
  }

  int64_t slice(int64_t num_rows, const int64_t* rows, int64_t num_columns, const int64_t* columns,
                const int64_t* numbers) override {
    for (int64_t i = 0; i < num_rows; ++i) require_node(rows[i], graph_.num_rows, i);
    enter(num_columns, columns, numbers);
    const int64_t chunks = (num_rows + grain - 1) / grain;
    if (int64_t(kept_.size()) < chunks) kept_.resize(size_t(chunks));
    counts_.assign(size_t(num_rows), 0);
    num_chunks_ = chunks;
    parallel_chunks(chunks, [&](int64_t chunk) {
      std::vector<kept_entry>& kept = kept_[size_t(chunk)];
      kept.clear();
      for (int64_t i = chunk * grain; i < std::min(num_rows, (chunk + 1) * grain); ++i) {
        const int64_t at = graph_.indptr[rows[i]], degree = graph_.indptr[rows[i] + 1] - at;
        const size_t before = kept.size();
        for (int64_t p = 0; p < degree; ++p) {
          if (p + ahead < degree) numbers_.prefetch(int64_t(graph_.indices[at + p + ahead]));
          const uint32_t number = numbers_.find(int64_t(graph_.indices[at + p]));
          if (number != unnumbered) kept.push_back({int32_t(number), uint32_t(p)});
        }
        counts_[size_t(i)] = int64_t(kept.size() - before);
      }
    });
    int64_t total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += int64_t(kept_[size_t(chunk)].size());
    return total;
  }

  void write_slice(int64_t* indptr, int32_t* indices, uint32_t* offsets) const override {
    indptr[0] = 0;
    for (size_t row = 0; row < counts_.size(); ++row) indptr[row + 1] = indptr[row] + counts_[row];
    parallel_chunks(num_chunks_, [&](int64_t chunk) {
      int64_t at = indptr[chunk * grain];
      for (const kept_entry& entry : kept_[size_t(chunk)]) {
        indices[at] = entry.column;
        offsets[at++] = entry.offset;
      }
    });
  }

  int64_t candidates(int64_t num_rows, const int64_t* rows, const double* factors, const float* weights) override {
    numbers_.start();
    ids_.clear();
    sums_.clear();
    for (int64_t i = 0; i < num_rows; ++i) {
      require_node(rows[i], graph_.num_rows, i);
      const int64_t at = graph_.indptr[rows[i]], end = graph_.indptr[rows[i] + 1];
      numbers_.reserve(int64_t(ids_.size()) + end - at, ids_.data(), int64_t(ids_.size()));
      const double factor = factors == nullptr ? 1.0 : factors[i];
      for (int64_t p = at; p < end; ++p) {
        if (p + ahead < end) numbers_.prefetch(int64_t(graph_.indices[p + ahead]));
        const int64_t id = int64_t(graph_.indices[p]);
        const uint32_t number = numbers_.find_or_add(id, uint32_t(ids_.size()));
        if (number == ids_.size()) {
          ids_.push_back(id);
          sums_.push_back(0.0);
        }
        const double weight = weights == nullptr ? 1.0 : double(weights[p]);
        sums_[number] += factor * weight * weight;
      }
    }
    return int64_t(ids_.size());
  }

  void write_candidates(int64_t* ids, double* sums) const override {
    std::copy(ids_.begin(), ids_.end(), ids);
    std::copy(sums_.begin(), sums_.end(), sums);
  }

 private:
  static constexpr int64_t grain = 64, ahead = 16;

  void enter(int64_t count, const int64_t* columns, const int64_t* numbers) {
    numbers_.start();
    int64_t most = count;
    for (int64_t i = 0; numbers != nullptr && i < count; ++i) {
      require(numbers[i] >= 0, "subset: a number is negative");
      most = std::max(most, numbers[i] + 1);
    }
    numbers_.template reserve<I>(most, nullptr, 0);
    for (int64_t i = 0; i < count; ++i) {
      require_node(columns[i], graph_.num_cols, i);
      const uint32_t number = uint32_t(numbers == nullptr ? i : numbers[i]);
      if (numbers_.find_or_add(columns[i], number) != number)
        throw error(bad_argument, "expected distinct nodes, got " + std::to_string(columns[i]) + " again at position " +
                                      std::to_string(i));
    }
  }

  csr_view<I> graph_;
  Numbers numbers_;
  std::vector<std::vector<kept_entry>> kept_;  // by chunk of rows
  std::vector<int64_t> counts_;                // by row
  int64_t num_chunks_ = 0;
  std::vector<int64_t> ids_;
  std::vector<double> sums_;
};

}  // namespace gw
