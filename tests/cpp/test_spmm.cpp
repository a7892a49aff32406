// Sparse products over neighbours: every tail of a tile, padded rows, rows that several pieces share, panels.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/balance.h"
#include "graphweft/entry_points.h"
#include "graphweft/stretches.h"

namespace {

int64_t span(int64_t rows, int64_t width, int64_t ld) { return rows == 0 ? 0 : (rows - 1) * ld + width; }

// Sums of neighbours in double, times weights by position.
std::vector<double> neighbour_sums(const data::graph& g, const std::vector<float>& x, int64_t ldx, int64_t width,
                                   const std::vector<float>& weight) {
  std::vector<double> out(size_t(g.num_rows * width), 0.0);
  for (int64_t i = 0; i < g.num_rows; ++i)
    for (int64_t p = g.indptr[size_t(i)]; p < g.indptr[size_t(i + 1)]; ++p)
      for (int64_t k = 0; k < width; ++k)
        out[size_t(i * width + k)] += double(weight[size_t(p)]) * x[size_t(g.indices[size_t(p)] * ldx + k)];
  return out;
}

void compare_with_sums(data::graph& g, int64_t width, bool with_panel) {
  const int64_t ldx = width + 3, ldy = width + 2;
  std::vector<float> x = data::floats(span(g.num_cols, width, ldx), 1), weight = data::floats(g.num_edges, 2);
  std::vector<float> y(size_t(span(g.num_rows, width, ldy)), -7.0f), bias = data::floats(width, 3);
  std::vector<float> sums(size_t(width), -7.0f), panel(size_t(with_panel ? g.num_cols * 48 : 0));
  const gw_adjacency view = g.view();
  gw_epilogue_f32 stages{};
  stages.bias = bias.data();
  stages.col_sum = sums.data();
  CHECK(gw_spmm_f32(&view, data::pointer(x), ldx, width, data::pointer(weight), nullptr, 0.0, nullptr, 0, &stages, 5,
                    data::pointer(panel), 0, data::pointer(y), ldy) == 0);
  const std::vector<double> want = neighbour_sums(g, x, ldx, width, weight);
  std::vector<double> want_sums(size_t(width), 0.0);
  for (int64_t i = 0; i < g.num_rows; ++i) {
    for (int64_t k = 0; k < width; ++k) {
      const double value = want[size_t(i * width + k)] + double(bias[size_t(k)]);
      want_sums[size_t(k)] += value;
      CHECK(check::close(y[size_t(i * ldy + k)], value, 1e-4));
    }
    if (i + 1 < g.num_rows) CHECK(y[size_t(i * ldy + width)] == -7.0f);  // padding stays
  }
  for (int64_t k = 0; k < width; ++k) CHECK(check::close(sums[size_t(k)], want_sums[size_t(k)], 1e-3));
}

}  // namespace

TEST(sums_of_neighbours_at_every_tail) {
  data::graph small(40, 60, 300, 1), none(5, 4, 0, 1), nothing(0, 0, 0, 1);
  for (int64_t width = 1; width <= 70; ++width) {
    compare_with_sums(small, width, false);
    compare_with_sums(small, width, width > 32);
  }
  compare_with_sums(small, 301, true);
  compare_with_sums(none, 33, true);
  compare_with_sums(nothing, 33, false);
}

TEST(sums_of_rows_that_pieces_share) {
  data::graph skewed(2000, 500, 60000, 4, true);
  for (const int64_t width : {1, 16, 47}) compare_with_sums(skewed, width, width > 32);
}

// Long rows over many columns: three are empty, one has the edges of four, some are in no order.
data::graph long_rows() {
  data::graph g(90, 16000, 90000, 11);
  for (const int64_t row : {40, 41, 42}) g.indptr[size_t(row)] = g.indptr[39];
  for (int64_t row = 0; row < g.num_rows; ++row)
    if (row != 3 && row != 10 && row != 24 && row != 31)
      std::sort(g.indices.begin() + g.indptr[size_t(row)], g.indices.begin() + g.indptr[size_t(row + 1)]);
  // every other row has a loop behind the others
  for (int64_t row = 0; row < g.num_rows; row += 2)
    if (g.indptr[size_t(row)] < g.indptr[size_t(row + 1)])
      g.indices[size_t(g.indptr[size_t(row + 1)] - 1)] = int32_t(row);
  return g;
}

// y in place of an addend is read at the end of a row, so that call takes whole rows; the other takes stretches.
void compare_with_whole_rows(data::graph& g, int64_t width, bool with_panel, bool mean) {
  const int64_t ldx = width + 1, ldy = width + 2;
  std::vector<float> x = data::floats(span(g.num_cols, width, ldx), 1), bias = data::floats(width, 3);
  std::vector<float> panel(size_t(with_panel ? g.num_cols * 48 : 0));
  const gw_adjacency view = g.view();
  std::vector<float> y[2], sums[2];
  for (const int whole : {0, 1}) {
    y[whole].assign(size_t(span(g.num_rows, width, ldy)), 0.0f), sums[whole].assign(size_t(width), -7.0f);
    gw_epilogue_f32 stages{};
    stages.bias = bias.data();
    stages.relu = 1;
    stages.col_sum = sums[whole].data();
    if (whole) stages.addend = y[whole].data(), stages.ld_addend = ldy;
    CHECK(gw_spmm_f32(&view, x.data(), ldx, width, nullptr, nullptr, 0.5, nullptr, mean, &stages, -1,
                      data::pointer(panel), 0, y[whole].data(), ldy) == 0);
  }
  CHECK(y[0] == y[1] && sums[0] == sums[1]);
}

// Entries in the order of stretches, for products of so many columns.
struct ordered {
  std::vector<int64_t> rows, entries;
  std::vector<uint16_t> lengths, inside;
  std::vector<int32_t> behind;
  gw_stretches native{};
  int32_t made = 0;

  ordered(const gw_adjacency& view, int64_t width, int64_t count) {
    int64_t columns = 0, pieces = 0, parts = 0;
    CHECK(gw_stretches_sizes(&view, width, count, &columns, &pieces, &parts) == 0);
    rows.resize(size_t(pieces + 1)), entries.resize(size_t(count * pieces)), lengths.resize(size_t(count * parts));
    behind.resize(size_t(parts)), inside.resize(size_t(view.num_edges));
    CHECK(gw_stretches_fill(&view, width, count, columns, rows.data(), entries.data(), lengths.data(), behind.data(),
                            inside.data(), &made) == 0);
    native = {view.indptr,    count,          columns,       pieces,       rows.data(),
              entries.data(), lengths.data(), behind.data(), inside.data()};
  }
};

// Long rows in order; every other row has a loop behind the others.
data::graph rows_in_order() {
  data::graph g = long_rows();
  for (int64_t row = 0; row < g.num_rows; ++row) {
    const int64_t first = g.indptr[size_t(row)], last = std::max(first, g.indptr[size_t(row + 1)] - row % 2);
    std::sort(g.indices.begin() + first, g.indices.begin() + last);
  }
  return g;
}

TEST(ordered_entries_have_the_bits_of_whole_rows) {
  data::graph g = rows_in_order();
  for (const int64_t width : {1, 7, 16, 32, 33, 48, 64}) {
    const int64_t ldy = width + 2;
    const bool with_panel = width == 64;
    std::vector<float> x = data::floats(g.num_cols * width, 1), bias = data::floats(width, 3);
    std::vector<float> panel(size_t(with_panel ? g.num_cols * 48 : 0));
    const ordered entries(g.view(), with_panel ? 32 : width, 5);
    CHECK(entries.made == 1);
    CHECK(*std::max_element(entries.behind.begin(), entries.behind.end()) >= 0);
    std::vector<float> y[3], sums[3];
    for (const int at_hand : {0, 1, 2}) {
      gw_adjacency view = g.view();
      if (at_hand) view.stretches = &entries.native;
      if (at_hand == 2) view.indices = nullptr;  // edges lie in no other order
      y[at_hand].assign(size_t(span(g.num_rows, width, ldy)), 0.0f), sums[at_hand].assign(size_t(width), -7.0f);
      gw_epilogue_f32 stages{};
      stages.bias = bias.data();
      stages.col_sum = sums[at_hand].data();
      CHECK(gw_spmm_f32(&view, x.data(), width, width, nullptr, nullptr, 0.5, nullptr, 1, &stages, -1,
                        data::pointer(panel), 0, y[at_hand].data(), ldy) == 0);
    }
    CHECK(y[0] == y[1] && sums[0] == sums[1]);
    CHECK(y[0] == y[2] && sums[0] == sums[2]);
  }
}

TEST(edges_by_stretches_alone_are_not_read_by_row) {
  data::graph g = rows_in_order();
  const ordered entries(g.view(), 32, 5);
  gw_adjacency view = g.view();
  view.stretches = &entries.native, view.indices = nullptr;
  std::vector<float> x = data::floats(g.num_cols * 32, 1), scale = data::floats(g.num_cols, 2), y(x.size(), -7.0f);
  // A factor of each source, which is looked up by edge.
  CHECK(gw_spmm_f32(&view, x.data(), 32, 32, nullptr, scale.data(), 0, nullptr, 0, nullptr, -1, nullptr, 0, y.data(),
                    32) != 0);
  CHECK(std::string(gw_last_error()).find("by stretches alone") != std::string::npos);
}

TEST(entries_are_read_by_the_adjacency_that_they_were_made_for) {
  data::graph g = rows_in_order();
  const ordered entries(g.view(), 32, 5);
  // Another adjacency that points to them, by mistake, has its own rows summed.
  std::vector<int64_t> indptr = g.indptr;
  for (int64_t& at : indptr) at = at / 2;
  gw_adjacency half = g.view(), lost = half;
  half.indptr = lost.indptr = indptr.data(), half.num_edges = lost.num_edges = indptr.back();
  lost.stretches = &entries.native;
  std::vector<float> x = data::floats(g.num_cols * 32, 1), y[2];
  for (const int at_hand : {0, 1}) {
    y[at_hand].assign(size_t(g.num_rows * 32), -7.0f);
    CHECK(gw_spmm_f32(at_hand ? &lost : &half, x.data(), 32, 32, nullptr, nullptr, 0, nullptr, 0, nullptr, -1, nullptr,
                      0, y[at_hand].data(), 32) == 0);
  }
  CHECK(y[0] == y[1]);
}

TEST(rows_in_no_order_are_left) {
  data::graph mixed = long_rows();
  CHECK(ordered(mixed.view(), 32, 5).made == 0);
}

TEST(rows_in_stretches_have_the_bits_of_whole_rows) {
  data::graph g = long_rows();
  const gw_adjacency view = g.view();
  CHECK(gw::stretch_columns<int32_t>(view, 128) > 0);
  for (const int64_t width : {32, 33, 47, 48, 64, 100}) compare_with_whole_rows(g, width, false, width == 47);
  for (const int64_t width : {90, 64 + 17}) compare_with_whole_rows(g, width, true, width == 90);
}

TEST(sums_in_stretches) {
  data::graph g = long_rows();
  const int64_t width = 40;
  std::vector<float> x = data::floats(g.num_cols * width, 1), y(size_t(g.num_rows * width), -7.0f);
  const gw_adjacency view = g.view();
  CHECK(gw_spmm_f32(&view, x.data(), width, width, nullptr, nullptr, 0.0, nullptr, 0, nullptr, -1, nullptr, 0, y.data(),
                    width) == 0);
  const std::vector<double> want = neighbour_sums(g, x, width, width, std::vector<float>(g.indices.size(), 1.0f));
  for (size_t i = 0; i < want.size(); ++i) CHECK(check::close(y[i], want[i], 1e-4));
}

TEST(stretches_are_for_long_rows_in_order) {
  data::graph g(90, 16000, 90000, 11);  // in no order
  const gw_adjacency mixed = g.view();
  CHECK(gw::stretch_columns<int32_t>(mixed, 128) == 0);
  for (int64_t row = 0; row < g.num_rows; ++row)
    std::sort(g.indices.begin() + g.indptr[size_t(row)], g.indices.begin() + g.indptr[size_t(row + 1)]);
  gw_adjacency view = g.view();
  CHECK(gw::stretch_columns<int32_t>(view, 128) > 0);
  CHECK(gw::stretch_columns<int32_t>(view, 32) == 0);  // all rows of x stay in a core's cache
  view.num_cols = 16000000;                            // few edges for each stretch
  CHECK(gw::stretch_columns<int32_t>(view, 128) == 0);
}

// What a row's maximum (minimum) is, and from where: the first edge that attains it; a NaN wins, the first one.
void check_extremum(const data::graph& g, const std::vector<float>& x, int64_t width, bool minimum,
                    const std::vector<float>& y, const std::vector<int32_t>& arg) {
  for (int64_t i = 0; i < g.num_rows; ++i)
    for (int64_t k = 0; k < width; ++k) {
      float best = 0.0f;
      int32_t from = -1;
      for (int64_t p = g.indptr[size_t(i)]; p < g.indptr[size_t(i + 1)]; ++p) {
        const int32_t j = g.indices[size_t(p)];
        const float value = x[size_t(j * width + k)];
        const bool better = minimum ? value < best : value > best;
        if (from < 0 || (better && !std::isnan(best)) || (std::isnan(value) && !std::isnan(best)))
          best = value, from = j;
      }
      const float got = y[size_t(i * width + k)];
      CHECK(std::memcmp(&got, &best, sizeof got) == 0);
      if (!arg.empty()) CHECK(arg[size_t(i * width + k)] == from);
    }
}

// With entries that are ordered, or by a search for each stretch.
void check_extrema(data::graph& g, bool at_hand) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t width : {32, 33, 48, 100})
    for (const bool special : {false, true}) {
      std::vector<float> x = data::floats(g.num_cols * width, 1);
      // Some columns have no finite value in most rows; infinities of both signs stand side by side.
      for (size_t at = 0; special && at < x.size(); ++at)
        if (at % 7 == 0 || at % size_t(width) == 3) x[at] = at % 5 == 0 ? inf : -inf;
      for (size_t at = 0; special && at < x.size(); at += 997) x[at] = nan;
      for (const int choice : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const bool minimum = choice & 1, winners = choice & 2, copied = choice & 4;
        std::vector<float> panel(copied ? size_t(g.num_cols * 48) : 0), y(size_t(g.num_rows * width), -7.0f);
        std::vector<int32_t> arg(winners ? y.size() : 0, -7);
        const ordered entries(g.view(), width, 5);
        CHECK(entries.made == at_hand);
        gw_adjacency view = g.view();
        if (at_hand) view.stretches = &entries.native;
        if (at_hand && copied) view.indices = nullptr;  // edges lie in no other order
        CHECK(gw_spmm_max_f32(&view, x.data(), width, width, minimum, data::pointer(panel), y.data(), width,
                              data::pointer(arg), width) == 0);
        check_extremum(g, x, width, minimum, y, arg);
      }
    }
}

TEST(extremum_in_stretches) {
  data::graph g = long_rows();
  CHECK(gw::stretch_columns<int32_t>(g.view(), 128) > 0);
  check_extrema(g, false);
}

TEST(extremum_of_ordered_entries) {
  data::graph g = rows_in_order();
  check_extrema(g, true);
}

TEST(extremum_and_its_gradient) {
  data::graph small(40, 40, 300, 1), skewed(300, 300, 60000, 4, true);
  for (data::graph* g : {&small, &skewed})
    for (const int64_t width : {1, 15, 16, 17, 64, 100}) {
      std::vector<float> x = data::floats(g->num_cols * width, 1), y(size_t(g->num_rows * width), -7.0f);
      std::vector<int32_t> arg(size_t(g->num_rows * width), -7);
      const gw_adjacency view = g->view();
      CHECK(gw_spmm_max_f32(&view, x.data(), width, width, 0, nullptr, y.data(), width, arg.data(), width) == 0);
      check_extremum(*g, x, width, false, y, arg);
      // Every row as a source: its gradient is what the destinations in its row route to it.
      std::vector<float> dx(size_t(g->num_rows * width), -7.0f);
      CHECK(gw_spmm_max_grad_f32(&view, arg.data(), width, x.data(), width, width, dx.data(), width) == 0);
      // What a column wins of each row; ids of no column, as a caller may have them by mistake, are left out.
      dx.assign(size_t(g->num_cols * width), -7.0f);
      std::vector<float> want(dx.size(), 0.0f);
      arg[0] = int32_t(g->num_cols);
      for (size_t at = 0; at < arg.size(); ++at)
        if (arg[at] >= 0 && arg[at] < g->num_cols) want[size_t(arg[at]) * size_t(width) + at % size_t(width)] += x[at];
      CHECK(gw_spmm_max_winners_f32(arg.data(), 0, width, x.data(), width, g->num_rows, width, dx.data(), width,
                                    g->num_cols) == 0);
      CHECK(dx == want);
    }
}

TEST(dots_and_dropout_of_edges) {
  data::graph g(30, 50, 400, 2);
  const gw_adjacency view = g.view();
  for (const int64_t width : {1, 16, 33, 130}) {
    std::vector<float> a = data::floats(30 * width, 1), b = data::floats(50 * width, 2), out(400, -7.0f);
    CHECK(gw_sddmm_dot_f32(&view, a.data(), width, b.data(), width, width, out.data()) == 0);
    for (int64_t i = 0; i < 30; ++i)
      for (int64_t p = g.indptr[size_t(i)]; p < g.indptr[size_t(i + 1)]; ++p) {
        double want = 0.0;
        for (int64_t k = 0; k < width; ++k)
          want += double(a[size_t(i * width + k)]) * b[size_t(g.indices[size_t(p)] * width + k)];
        CHECK(check::close(out[size_t(p)], want, 1e-5));
      }
  }
  std::vector<float> values = data::floats(400, 3), kept(400), dense(30 * 50), dropped(30 * 50);
  CHECK(gw_sparse_dropout_f32(&view, values.data(), 50, 0, 0.4, 9, 1, kept.data()) == 0);
  dense.assign(dense.size(), 1.0f);
  CHECK(gw_dropout_f32(30, 50, dense.data(), 50, 0.4, 9, 1, dropped.data(), 50, nullptr, 0) == 0);
  for (int64_t i = 0; i < 30; ++i)
    for (int64_t p = g.indptr[size_t(i)]; p < g.indptr[size_t(i + 1)]; ++p) {
      const float factor = dropped[size_t(i * 50 + g.indices[size_t(p)])];
      CHECK(check::close(kept[size_t(p)], double(values[size_t(p)]) * factor, 1e-6));
    }
}

TEST(pieces_of_a_star_are_of_one_size) {
  const int64_t n = 400000;  // one row with all edges, the others empty
  std::vector<int64_t> indptr(size_t(n + 1), n);
  indptr[0] = 0;
  std::vector<int32_t> indices(size_t(n), 0);
  const gw_adjacency star{n, n, n, indptr.data(), indices.data(), nullptr, 0};
  const gw::balanced_pieces shares(star, 32);
  const auto count = int64_t(shares.pieces().size());
  CHECK(count >= 32);
  int64_t edges = 0;
  for (const gw::piece& p : shares.pieces()) {
    const int64_t work = p.edge_end - p.edge_begin + p.row_end - p.row_begin;
    CHECK(work <= 2 * n / count * 11 / 10);
    edges += p.edge_end - p.edge_begin;
  }
  CHECK(edges == n);
  CHECK(shares.cut_rows().size() == 1 && shares.cut_rows()[0].last_slot == shares.num_slots());
}
