// What an evaluation says of one split, and how it is reported.
#pragma once

#include <cstdint>

#include "dataset.h"
#include "kernels.h"
#include "report.h"
#include "team.h"

namespace program {

// Not a number where there is none. `accuracy` is the micro-averaged F1 where nodes have several labels; `auc`: for two
// classes, the area under the ROC curve; the last three are for labels that are numbers.
struct Scores {
  double loss, accuracy, auc, rmse, mae, r2;

  Scores();
  // The score that says which epoch is the best, the larger being better.
  [[nodiscard]] double rank() const;
};

// Of all three splits.
struct Evaluation {
  Scores train, val, test;
};

Scores score(const Matrix& outputs, const Dataset& data, const Numbers<int64_t>& rows, const Team& team);

// "accuracy", "micro-F1" or "RMSE".
const char* metric_of(Task task);
// Those of `found` that were measured beside the accuracy: train_auc and so on.
void add_measured(Json& line, const Evaluation& found);
// The same of the last epoch, and of the best: best_val_auc, test_auc_at_best_val and so on.
void add_best_measured(Json& line, const Evaluation& last, const Evaluation& best);

}  // namespace program
