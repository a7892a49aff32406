#include "arrays.h"

#include <cmath>
#include <stdexcept>

namespace program {

void require_size(const char* what, int64_t expected, int64_t got) {
  if (expected == got) return;
  throw std::runtime_error(std::string(what) + ": expected " + std::to_string(expected) +
                           ", which this program was written for, got " + std::to_string(got));
}

Numbers<int32_t> read_ids(const Npz& file, const std::string& name, int64_t bound) {
  const Numbers<int64_t> wide = file.read<int64_t>(name);
  for (const int64_t id : wide)
    if (id < 0 || id >= bound)
      throw std::runtime_error(name + ": expected ids in [0, " + std::to_string(bound) + "), got " +
                               std::to_string(id));
  return {wide.begin(), wide.end()};
}

Numbers<int64_t> read_labels(const Npz& file, int64_t nodes, int64_t classes) {
  const Array header = file.array("y");
  require_size("y", nodes, header.count());
  const Numbers<double> values = file.read<double>("y");
  Numbers<int64_t> labels(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != std::floor(values[i]) || values[i] < -1 || values[i] >= double(classes))
      throw std::runtime_error("y: expected class ids below " + std::to_string(classes) + ", or -1 for none, got " +
                               std::to_string(values[i]) + " at position " + std::to_string(i));
    labels[i] = int64_t(values[i]);
  }
  return labels;
}

Numbers<int64_t> read_split(const Npz& file, const std::string& name, const Numbers<int64_t>& labels) {
  if (!file.has(name))
    throw std::runtime_error(name + ": expected a mask in the file, got none; gw.load(...).save(...) writes them");
  const Array header = file.array(name);
  const Numbers<int64_t> mask = file.read<int64_t>(name);
  const auto nodes = int64_t(labels.size());
  int64_t step = 1;
  if (header.shape.size() == 2 && header.shape[1] != nodes && header.shape[0] == nodes) step = header.shape[1];
  if (header.shape.empty() || header.shape.size() > 2 || (header.shape.back() != nodes && step == 1))
    throw std::runtime_error(name + ": expected " + std::to_string(nodes) + " entries, one per node");
  Numbers<int64_t> rows;
  for (int64_t i = 0; i < nodes; ++i) {
    const int64_t value = mask[size_t(i * step)];
    if (value != 0 && value != 1) throw std::runtime_error(name + ": expected true and false, got other values");
    if (value && labels[size_t(i)] >= 0) rows.push_back(i);
  }
  return rows;
}

}  // namespace program
