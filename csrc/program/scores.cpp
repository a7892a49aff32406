#include "scores.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "entry_loss.h"

namespace program {

Scores::Scores() : loss(NAN), accuracy(NAN), auc(NAN), rmse(NAN), mae(NAN), r2(NAN) {}

double Scores::rank() const { return std::isnan(rmse) ? accuracy : -rmse; }

namespace {

// Probability that a node of the second class scores higher than one of the first (Mann and Whitney, 1947).
double area(const Matrix& outputs, const Dataset& data, const Numbers<int64_t>& rows) {
  std::vector<float> positive, negative;
  positive.reserve(rows.size());
  negative.reserve(rows.size());
  for (const int64_t row : rows) {
    const float margin = outputs.at[2 * row + 1] - outputs.at[2 * row];
    if (std::isnan(margin)) return NAN;
    (data.labels[size_t(row)] == 1 ? positive : negative).push_back(margin);
  }
  if (positive.empty() || negative.empty()) return NAN;
  std::sort(negative.begin(), negative.end());
  int64_t twice = 0;
  for (const float one : positive)
    twice += (std::lower_bound(negative.begin(), negative.end(), one) - negative.begin()) +
             (std::upper_bound(negative.begin(), negative.end(), one) - negative.begin());
  return double(twice) / (2.0 * double(positive.size()) * double(negative.size()));
}

Ids listed(const Numbers<int64_t>& rows) { return {rows.data(), int64_t(rows.size())}; }

Scores of_classes(const Matrix& outputs, const Dataset& data, const Numbers<int64_t>& rows, const Team& team) {
  Loss found;
  if (!rows.empty()) found = cross_entropy(outputs, data.labels.data(), listed(rows), nullptr);
  double sums[] = {found.sum, double(found.correct), double(found.rows)};
  team.sum(sums, 3);
  Scores made;
  if (sums[2] == 0) return made;
  made.loss = double(float(sums[0] / sums[2]));
  made.accuracy = sums[1] / sums[2];
  if (outputs.cols == 2 && Team::size() == 1) made.auc = area(outputs, data, rows);
  return made;
}

Scores of_labels(const Matrix& outputs, const Dataset& data, const Numbers<int64_t>& rows, const Team& team) {
  EntryLoss found;
  if (!rows.empty()) found = entry_loss(Entries::binary, outputs, data.entries.data(), listed(rows), nullptr);
  double sums[] = {found.sum, double(found.rows), double(found.hits), double(found.predicted + found.actual)};
  team.sum(sums, 4);
  Scores made;
  if (sums[1] == 0) return made;
  made.loss = double(float(sums[0] / sums[1]));
  made.accuracy = sums[3] == 0 ? 1.0 : 2 * sums[2] / sums[3];
  return made;
}

// Sums over the known entries of a column: how many, their labels, squared and absolute errors, squares around the
// mean.
struct ColumnSums {
  double count = 0, labels = 0, squares = 0, absolute = 0, around = 0;
};

Scores of_values(const Matrix& outputs, const Dataset& data, const Numbers<int64_t>& rows, const Team& team) {
  finish();
  const auto over = [&](int64_t column, auto&& each) {
    for (const int64_t row : rows) {
      const int64_t at = row * outputs.cols + column;
      const auto wanted = double(data.entries[size_t(at)]);
      if (!std::isnan(wanted)) each(wanted, double(outputs.at[at]) - wanted);
    }
  };
  ColumnSums all;
  double explained = 0, columns = 0;
  for (int64_t column = 0; column < outputs.cols; ++column) {
    ColumnSums one;
    over(column, [&](double wanted, double error) {
      one.count += 1, one.labels += wanted, one.squares += error * error, one.absolute += std::abs(error);
    });
    double sums[] = {one.count, one.labels, one.squares, one.absolute};
    team.sum(sums, 4);
    const double mean = sums[1] / std::max(sums[0], 1.0);
    over(column, [&](double wanted, double) { one.around += (wanted - mean) * (wanted - mean); });
    team.sum(&one.around, 1);
    all.count += sums[0], all.squares += sums[2], all.absolute += sums[3];
    if (one.around > 0) explained += 1 - sums[2] / one.around, columns += 1;
  }
  Scores made;
  if (all.count == 0) return made;
  made.loss = all.squares / all.count;
  made.rmse = std::sqrt(made.loss);
  made.mae = all.absolute / all.count;
  if (columns > 0) made.r2 = explained / columns;
  return made;
}

struct Column {
  const char* name;
  double Scores::* value;
};
constexpr Column measured[] = {
    {"auc", &Scores::auc}, {"rmse", &Scores::rmse}, {"mae", &Scores::mae}, {"r2", &Scores::r2}};

}  // namespace

Scores score(const Matrix& outputs, const Dataset& data, const Numbers<int64_t>& rows, const Team& team) {
  switch (data.task) {
    case Task::labels:
      return of_labels(outputs, data, rows, team);
    case Task::values:
      return of_values(outputs, data, rows, team);
    default:
      return of_classes(outputs, data, rows, team);
  }
}

const char* metric_of(Task task) {
  return task == Task::labels ? "micro-F1" : task == Task::values ? "RMSE" : "accuracy";
}

void add_measured(Json& line, const Evaluation& found) {
  for (const Column& column : measured) {
    const auto add = [&](const char* part, double value) {
      if (std::isfinite(value)) line.add((std::string(part) + "_" + column.name).c_str(), value);
    };
    add("train", found.train.*column.value);
    add("val", found.val.*column.value);
    add("test", found.test.*column.value);
  }
}

void add_best_measured(Json& line, const Evaluation& last, const Evaluation& best) {
  for (const Column& column : measured) {
    const double parts[] = {last.train.*column.value, last.val.*column.value, last.test.*column.value};
    if (std::all_of(parts, parts + 3, [](double value) { return std::isnan(value); })) continue;
    const std::string name = column.name;
    line.add(("train_" + name).c_str(), parts[0]);
    line.add(("val_" + name).c_str(), parts[1]);
    line.add(("test_" + name).c_str(), parts[2]);
    line.add(("best_val_" + name).c_str(), best.val.*column.value);
    line.add(("test_" + name + "_at_best_val").c_str(), best.test.*column.value);
  }
}

}  // namespace program
