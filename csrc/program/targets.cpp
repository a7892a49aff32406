// Labels and splits of a dataset, of a whole one or of a part.
#include <cmath>

#include "arrays.h"
#include "dataset.h"

namespace program {

void Dataset::read_targets(int64_t nodes) {
  const int64_t columns = expected_.classes;
  std::vector<bool> is_known(size_t(nodes), false);
  if (task == Task::classes) {
    labels = read_labels(file_, nodes, columns);
    for (int64_t i = 0; i < nodes; ++i) is_known[size_t(i)] = labels[size_t(i)] >= 0;
  } else {
    entries = read_entries(file_, nodes, columns, task == Task::labels);
    for (int64_t i = 0; i < nodes * columns; ++i)
      if (!std::isnan(entries[size_t(i)])) is_known[size_t(i / columns)] = true;
  }
  split = {read_split(file_, "train_mask", is_known), read_split(file_, "val_mask", is_known),
           read_split(file_, "test_mask", is_known)};
}

}  // namespace program
