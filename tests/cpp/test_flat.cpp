// Products of a typed graph's features from dense rows: every tail of a tile, nodes without features, rows and columns
// that are added up in parts, rows that come a piece at a time.
#include <cstdint>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

constexpr int64_t stored = 19, columns = 7 + 40 + stored;  // of three types: 7 columns, one a node for 40 nodes, 19

// Nodes of three types in runs; the rows of the first type end in zeros, four of five numbers are zeros.
struct features {
  explicit features(int64_t nodes) : table(data::floats(nodes * stored, 5)), place(size_t(nodes)) {
    for (size_t i = 0; i < table.size(); ++i)
      if (i * 7 % 5) table[i] = 0.0f;
    end = {nodes / 2, nodes / 2 + nodes / 10, nodes};
    for (int64_t i = 0; i < nodes; ++i)
      place[size_t(i)] = i >= end[0] && i < end[1] ? 7 + i * 3 % 40 : (i * 13 + 5) % nodes;
  }

  gw_flat_rows from(int64_t node, const std::vector<int64_t>& ends, size_t run) const {
    return {ends.back(),          place.data() + node, table.data(),       int64_t(place.size()), stored,
            int64_t(ends.size()), ends.data(),         first.data() + run, width.data() + run};
  }

  gw_flat_rows all() const { return from(0, end, 0); }

  // The entries of node i: column, value.
  std::vector<std::pair<int64_t, float>> row(int64_t i) const {
    const size_t run = i < end[0] ? 0 : i < end[1] ? 1 : 2;
    if (width[run] == 0) return {{place[size_t(i)], 1.0f}};
    std::vector<std::pair<int64_t, float>> found;
    for (int64_t c = 0; c < width[run]; ++c)
      if (const float value = table[size_t(place[size_t(i)] * stored + c)]; value != 0)
        found.push_back({first[run] + c, value});
    return found;
  }

  std::vector<float> table;
  std::vector<int64_t> place, end, first{0, 7, 47}, width{7, 0, stored};
};

struct cut_list {
  gw_flat_cuts view() const { return {int64_t(row.size()), row.data(), at.data()}; }
  std::vector<int64_t> row, at;
};

void compare(const features& x, int64_t width, const cut_list& of_rows, const cut_list& of_columns) {
  const int64_t nodes = int64_t(x.place.size()), ld = width + 3;
  const std::vector<float> w = data::floats(columns * ld, 1), g = data::floats(nodes * ld, 2);
  std::vector<float> y(size_t(nodes * ld), -7.0f), sums(size_t(columns * width)), ended(sums.size());
  std::vector<int64_t> seen(columns);
  std::vector<double> want_y(size_t(nodes * width)), want(sums.size());
  for (int64_t i = 0; i < nodes; ++i)
    for (const auto& [c, value] : x.row(i))
      for (int64_t k = 0; k < width; ++k) {
        want_y[size_t(i * width + k)] += double(value) * w[size_t(c * ld + k)];
        want[size_t(c * width + k)] += double(value) * g[size_t(i * ld + k)];
      }
  const gw_flat_rows all = x.all();
  const gw_flat_cuts rows = of_rows.view(), cuts = of_columns.view();
  CHECK(gw_flat_matmul_f32(&all, &rows, 0, columns, w.data(), ld, width, y.data(), ld) == 0);
  for (int64_t i = 0; i < nodes; ++i) {
    for (int64_t k = 0; k < width; ++k) CHECK(check::close(y[size_t(i * ld + k)], want_y[size_t(i * width + k)], 1e-4));
    CHECK(y[size_t(i * ld + width)] == -7.0f);  // padding stays
  }
  CHECK(gw_flat_contract_f32(&all, &cuts, columns, g.data(), ld, width, sums.data(), seen.data(), ended.data(), 1) ==
        0);
  for (size_t i = 0; i < sums.size(); ++i) CHECK(check::close(sums[i], want[i], 1e-3));

  // The nodes of the first type, then the others: the same bits.
  std::vector<float> pieces(sums.size()), ended_too(sums.size());
  std::vector<int64_t> seen_too(columns), first_end{x.end[0]}, other_ends{x.end[1] - x.end[0], x.end[2] - x.end[0]};
  const gw_flat_rows begin = x.from(0, first_end, 0), rest = x.from(x.end[0], other_ends, 1);
  CHECK(gw_flat_contract_f32(&begin, &cuts, columns, g.data(), ld, width, pieces.data(), seen_too.data(),
                             ended_too.data(), 0) == 0);
  CHECK(gw_flat_contract_f32(&rest, &cuts, columns, g.data() + x.end[0] * ld, ld, width, pieces.data(), seen_too.data(),
                             ended_too.data(), 1) == 0);
  CHECK(pieces == sums);
  CHECK(seen_too == seen);
}

}  // namespace

TEST(products_of_dense_rows_of_types) {
  const features few(60), many(1000);
  for (const int64_t width : {1, 15, 16, 33, 64, 70}) {
    compare(few, width, {}, {});
    compare(many, width, {}, {});
    compare(many, width, {{2, 2, 999}, {1, 2, 3}}, {{3, 3, 9, 50}, {4, 30, 2, 17}});
  }
  compare(features(0), 5, {}, {});
}

TEST(entries_of_dense_rows_are_counted) {
  const features x(1000);
  const gw_flat_rows all = x.all();
  std::vector<int64_t> by_row(1000), by_column(columns), want(columns);
  CHECK(gw_flat_count(&all, columns, by_row.data(), by_column.data()) == 0);
  for (int64_t i = 0; i < 1000; ++i) {
    CHECK(by_row[size_t(i)] == int64_t(x.row(i).size()));
    for (const auto& entry : x.row(i)) ++want[size_t(entry.first)];
  }
  CHECK(by_column == want);
}

TEST(dense_rows_outside_the_table_are_refused) {
  features x(60);
  x.place[3] = 60;
  const gw_flat_rows all = x.all();
  std::vector<int64_t> by_row(60), by_column(columns);
  CHECK(gw_flat_count(&all, columns, by_row.data(), by_column.data()) != 0);
}
