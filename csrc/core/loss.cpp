// Entry points of the losses and of arg-max, float32.
#include "graphweft/loss.h"

extern "C" {

// Softmax cross entropy of logits[n, c] at the listed rows (null: all n). loss_sum is the plain sum of the rows'
// losses, correct the number of rows whose first maximum is their label; grad[n, c], if wanted, is scale times the
// gradient of that sum and zero in rows that are not listed; it may be written over the logits. A row listed k times
// counts k times. Labels outside [0, c)
// are an error in listed rows only.
GW_API int gw_cross_entropy_f32(int64_t n, int64_t c, const float* logits, int64_t ld, const int64_t* rows,
                                int64_t num_rows, const int64_t* labels, double scale, float* grad, int64_t ld_grad,
                                double* loss_sum, int64_t* correct) {
  return gw::guarded([&] {
    gw::require(n >= 0 && c > 0 && num_rows >= 0, "cross_entropy: expected at least one class and no negative size");
    std::unique_ptr<uint32_t[]> weight;
    if (rows) weight = gw::count_rows("cross_entropy", rows, num_rows, n);
    const auto whole = gw::cross_entropy({n, c, logits, ld, labels, weight.get(), grad, ld_grad, scale});
    *loss_sum = whole.loss;
    *correct = whole.correct;
  });
}

// Binary cross entropy of values[n, c] as logits, or where `squared` their squared differences from the labels, over
// the known entries (labels that are not NaN) of the listed rows (null: all n). loss_sum is the plain sum; counts[4]
// are the entries known, and of these the ones with value > 0 and label > 1/2, with value > 0, with label > 1/2.
// grad[n, c], if wanted, is scale times the gradient of that sum, zero where an entry is unknown or its row not listed;
// it may be written over the values. A row listed k times counts k times.
GW_API int gw_entry_loss_f32(int32_t squared, int64_t n, int64_t c, const float* values, int64_t ld,
                             const int64_t* rows, int64_t num_rows, const float* labels, int64_t ld_labels,
                             double scale, float* grad, int64_t ld_grad, double* loss_sum, int64_t* counts) {
  return gw::guarded([&] {
    gw::require(n >= 0 && c > 0 && num_rows >= 0, "entry_loss: expected at least one column and no negative size");
    gw::require(c <= INT32_MAX, "entry_loss: more columns than 32 bits count");
    std::unique_ptr<uint32_t[]> weight;
    if (rows) weight = gw::count_rows("entry_loss", rows, num_rows, n);
    const gw::entry_loss_args args = {n,    c, values, ld, labels, ld_labels, weight.get(), grad, grad ? ld_grad : c,
                                      scale};
    const auto whole = squared ? gw::entry_loss<gw::squared_entries>(args) : gw::entry_loss<gw::binary_entries>(args);
    *loss_sum = whole.loss;
    counts[0] = whole.known;
    counts[1] = whole.hits;
    counts[2] = whole.predicted;
    counts[3] = whole.actual;
  });
}
}
