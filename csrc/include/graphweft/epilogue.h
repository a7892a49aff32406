// The stages of gw_epilogue_f32 on a tile of one output row while it is still in registers, and the column sums that
// some rows' producers collect beside it. Used by the sparse and the dense products alike.
#pragma once

#include <vector>

#include "graphweft/abi.h"
#include "graphweft/element.h"

namespace gw {

// Whether row `row` has an addend.
GW_INLINE bool has_addend(const gw_epilogue_f32& stages, int64_t row) {
  return (stages.addend || stages.half_addend) && (stages.addend_rows == 0 || row < stages.addend_rows);
}

// Applies the stages to columns [col, col + V vectors) of row `row`. `col_sum` is the partial-sum row of the caller's
// chunk (column 0), or null. Nothing beyond the row's `tail` lanes is read or written.
template <int V, bool Full>
GW_INLINE void apply_epilogue(const gw_epilogue_f32& stages, int64_t row, int64_t col, int tail, float* col_sum,
                              f32::vec (&t)[V]) {
  using io = tile_io<f32, V, Full>;
  f32::vec other[V];
  if (stages.row_scale) {
    for (int v = 0; v < V; ++v) t[v] *= stages.row_scale[row];
  }
  if (stages.bias) {
    io::load(stages.bias + col, tail, other);
    for (int v = 0; v < V; ++v) t[v] += other[v];
  }
  if (has_addend(stages, row)) {
    const int64_t at = row * stages.ld_addend + col;
    if (stages.half_addend)
      tile_io<bf16, V, Full>::load(stages.half_addend + at, tail, other);
    else
      io::load(stages.addend + at, tail, other);
    for (int v = 0; v < V; ++v) t[v] += other[v];
  }
  if (stages.relu) {
    for (int v = 0; v < V; ++v) t[v] = t[v] < 0.0f ? f32::vec{} : t[v];  // NaN compares false and stays
  }
  if (stages.mask) {
    io::load(stages.mask + row * stages.ld_mask + col, tail, other);
    for (int v = 0; v < V; ++v) t[v] = other[v] > 0.0f ? t[v] : f32::vec{};
  }
  if (stages.half_mask) {
    tile_io<bf16, V, Full>::load(stages.half_mask + row * stages.ld_mask + col, tail, other);
    for (int v = 0; v < V; ++v) t[v] = other[v] > 0.0f ? t[v] : f32::vec{};
  }
  if (col_sum) {
    io::load(col_sum + col, tail, other);
    for (int v = 0; v < V; ++v) other[v] += t[v];
    io::store(col_sum + col, tail, other);
  }
  if (stages.post_scale) {
    for (int v = 0; v < V; ++v) t[v] *= stages.post_scale[row];
  }
}

// Partial column sums, one row per fixed chunk of output rows, added up in chunk order: the same bits for any number
// of threads as long as chunk boundaries do not depend on it.
class column_sums {
 public:
  // Nothing is kept when `wanted` is false; row() is null then.
  column_sums(bool wanted, int64_t num_chunks, int64_t width)
      : width_(width), stride_((width + 15) / 16 * 16), chunks_(num_chunks) {
    if (wanted) partial_.resize(size_t(checked_mul(num_chunks, stride_)), 0.0f);
  }
  [[nodiscard]] float* row(int64_t chunk) noexcept {
    return partial_.empty() ? nullptr : partial_.data() + chunk * stride_;
  }
  // out[k] = sum of the chunks' partial sums of column k.
  void finish(float* out) const {
    std::vector<double> total(size_t(width_), 0.0);
    if (!partial_.empty())
      for (int64_t chunk = 0; chunk < chunks_; ++chunk)
        for (int64_t k = 0; k < width_; ++k) total[size_t(k)] += double(partial_[size_t(chunk * stride_ + k)]);
    for (int64_t k = 0; k < width_; ++k) out[k] = float(total[size_t(k)]);
  }

 private:
  int64_t width_, stride_, chunks_;
  std::vector<float> partial_;
};

}  // namespace gw
