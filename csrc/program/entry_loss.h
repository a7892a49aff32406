// Losses over the entries of a matrix: several labels a node, or numbers; an entry that is not a number is not known.
#pragma once

#include <cstdint>

#include "kernels.h"

extern "C" {
GW_API int gw_entry_loss_f32(int32_t squared, int64_t n, int64_t c, const float* values, int64_t ld,
                             const int64_t* rows, int64_t num_rows, const float* labels, int64_t ld_labels,
                             double scale, float* grad, int64_t ld_grad, double* loss_sum, int64_t* counts);
}

namespace program {

// Binary cross-entropy of outputs as logits, or their squared differences from the labels.
enum class Entries { binary, squared };

// `rows` counts known entries. Of these: outputs above 0 whose label is above 1/2, outputs above 0, labels above 1/2.
struct EntryLoss : Loss {
  int64_t hits = 0, predicted = 0, actual = 0;
};

// Of the listed rows, and unless null the gradient of the mean over so many known entries.
inline EntryLoss entry_loss(Entries kind, const Matrix& outputs, const float* labels, const Ids& ids, float* gradient,
                            int64_t known = 1) {
  finish();
  EntryLoss found;
  static constexpr int64_t none = 0;
  const int64_t* rows = ids.count < 0 ? nullptr : ids.at ? ids.at : &none;
  int64_t counts[4] = {};
  check(gw_entry_loss_f32(kind == Entries::squared, outputs.rows, outputs.cols, outputs.at, outputs.cols, rows,
                          rows ? ids.count : 0, labels, outputs.cols, 1.0 / double(known ? known : 1), gradient,
                          outputs.cols, &found.sum, counts));
  found.rows = counts[0], found.hits = counts[1], found.predicted = counts[2], found.actual = counts[3];
  return found;
}

}  // namespace program
