#include "arrays.h"

#include <cmath>
#include <stdexcept>
#include <utility>

namespace program {

void require_size(const char* what, int64_t expected, int64_t got) {
  if (expected == got) return;
  throw std::runtime_error(std::string(what) + ": expected " + std::to_string(expected) +
                           ", which this program was written for, got " + std::to_string(got));
}

std::vector<Numbers<int32_t>> read_id_rows(const Npz& file, const std::string& name, int64_t rows, int64_t bound) {
  const auto width = size_t(file.array(name).count() / rows);
  std::vector<Numbers<int32_t>> found;
  std::vector<int32_t*> to;
  for (int64_t row = 0; row < rows; ++row) found.emplace_back(width);
  for (Numbers<int32_t>& ids : found) to.push_back(ids.data());
  if (file.read_below(name, bound, to)) return found;
  const Numbers<int64_t> wide = file.read<int64_t>(name);
  for (size_t i = 0; i < wide.size(); ++i) {
    if (wide[i] < 0 || wide[i] >= bound)
      throw std::runtime_error(name + ": expected ids in [0, " + std::to_string(bound) + "), got " +
                               std::to_string(wide[i]));
    found[i / width][i % width] = int32_t(wide[i]);
  }
  return found;
}

Numbers<int32_t> read_ids(const Npz& file, const std::string& name, int64_t bound) {
  return std::move(read_id_rows(file, name, 1, bound)[0]);
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

namespace {

// Rows of labels that are 1, as compressed rows.
Numbers<float> read_listed(const Npz& file, int64_t nodes, int64_t columns) {
  const Numbers<int64_t> ends = file.read<int64_t>("y_indptr");
  const Numbers<int32_t> ids = read_ids(file, "y_indices", columns);
  require_size("y_indptr", nodes + 1, int64_t(ends.size()));
  Numbers<float> held(ids.size(), 1.0f);
  if (file.has("y_data")) {
    require_size("y_data", int64_t(ids.size()), file.array("y_data").count());
    held = file.read<float>("y_data");
  }
  Numbers<float> found(size_t(nodes * columns), 0.0f);
  for (int64_t i = 0; i < nodes; ++i) {
    if (ends[size_t(i)] < 0 || ends[size_t(i)] > ends[size_t(i) + 1] || ends[size_t(i) + 1] > int64_t(ids.size()))
      throw std::runtime_error("y_indptr: expected ends that ascend to the number of labels");
    for (int64_t k = ends[size_t(i)]; k < ends[size_t(i) + 1]; ++k)
      if (held[size_t(k)] != 0) found[size_t(i * columns + ids[size_t(k)])] = 1.0f;
  }
  return found;
}

}  // namespace

Numbers<float> read_entries(const Npz& file, int64_t nodes, int64_t columns, bool are_labels) {
  if (are_labels && !file.has("y") && file.has("y_indptr")) return read_listed(file, nodes, columns);
  require_size("y", nodes * columns, file.array("y").count());
  Numbers<float> found = file.read<float>("y");
  for (size_t i = 0; i < found.size(); ++i)
    if (are_labels ? found[i] != 0 && found[i] != 1 : std::isinf(found[i]))
      throw std::runtime_error(std::string("y: expected ") + (are_labels ? "0 or 1" : "finite numbers") + ", got " +
                               std::to_string(found[i]) + " at position " + std::to_string(i));
  return found;
}

int64_t known_entries(const Numbers<float>& entries, const Numbers<int64_t>& rows, int64_t columns) {
  int64_t found = 0;
  for (const int64_t row : rows)
    for (int64_t k = row * columns; k < (row + 1) * columns; ++k) found += !std::isnan(entries[size_t(k)]);
  return found;
}

Numbers<int64_t> read_split(const Npz& file, const std::string& name, const std::vector<bool>& is_known) {
  if (!file.has(name))
    throw std::runtime_error(name + ": expected a mask in the file, got none; gw.load(...).save(...) writes them");
  const Array header = file.array(name);
  const Numbers<int64_t> mask = file.read<int64_t>(name);
  const auto nodes = int64_t(is_known.size());
  int64_t step = 1;
  if (header.shape.size() == 2 && header.shape[1] != nodes && header.shape[0] == nodes) step = header.shape[1];
  if (header.shape.empty() || header.shape.size() > 2 || (header.shape.back() != nodes && step == 1))
    throw std::runtime_error(name + ": expected " + std::to_string(nodes) + " entries, one per node");
  Numbers<int64_t> rows;
  for (int64_t i = 0; i < nodes; ++i) {
    const int64_t value = mask[size_t(i * step)];
    if (value != 0 && value != 1) throw std::runtime_error(name + ": expected true and false, got other values");
    if (value && is_known[size_t(i)]) rows.push_back(i);
  }
  return rows;
}

}  // namespace program
