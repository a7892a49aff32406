// Compression, transposition and questions about structure.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

struct shape {
  int64_t rows, cols, edges;
};
const shape shapes[] = {{0, 0, 0}, {1, 1, 0}, {1, 1, 5}, {5, 3, 0}, {7, 1, 20}, {1, 300, 999}, {300, 200, 70000}};

// Compresses (row, col) pairs and compares with counting one by one.
template <class In, class Out>
void compresses(const shape& s) {
  std::vector<In> rows = data::ids<In>(s.edges, std::max<int64_t>(s.rows, 1), 5);
  std::vector<In> cols = data::ids<In>(s.edges, std::max<int64_t>(s.cols, 1), 6);
  std::vector<int64_t> indptr(size_t(s.rows + 1), -1);
  std::vector<Out> indices(size_t(s.edges), -1), edge_ids(size_t(s.edges), -1);
  CHECK(gw_coo_to_csr(sizeof(In) == 8, s.edges, data::pointer(rows), data::pointer(cols), s.rows, s.cols,
                      sizeof(Out) == 8, indptr.data(), data::pointer(indices), data::pointer(edge_ids)) == 0);
  std::vector<std::vector<int64_t>> lists(size_t(s.rows));
  for (int64_t e = 0; e < s.edges; ++e) lists[size_t(rows[size_t(e)])].push_back(e);
  CHECK(indptr[0] == 0 && indptr[size_t(s.rows)] == s.edges);
  for (int64_t r = 0; r < s.rows; ++r) {
    CHECK(indptr[size_t(r + 1)] - indptr[size_t(r)] == int64_t(lists[size_t(r)].size()));
    for (size_t k = 0; k < lists[size_t(r)].size(); ++k) {
      const size_t p = size_t(indptr[size_t(r)]) + k;
      CHECK(edge_ids[p] == Out(lists[size_t(r)][k]));
      CHECK(indices[p] == Out(cols[size_t(lists[size_t(r)][k])]));
    }
  }
  std::vector<int64_t> offsets(indptr.size(), -1);
  std::vector<Out> columns(size_t(s.edges), -1);  // the same where nobody asks for the numbers of edges
  CHECK(gw_coo_to_csr(sizeof(In) == 8, s.edges, data::pointer(rows), data::pointer(cols), s.rows, s.cols,
                      sizeof(Out) == 8, offsets.data(), data::pointer(columns), nullptr) == 0);
  CHECK(offsets == indptr && columns == indices);
}

}  // namespace

TEST(edge_lists_compress_stably) {
  for (const shape& s : shapes) {
    compresses<int64_t, int32_t>(s);
    compresses<int32_t, int32_t>(s);
    compresses<int64_t, int64_t>(s);
    compresses<int32_t, int64_t>(s);
  }
}

TEST(bad_ids_are_refused_with_their_position) {
  const std::vector<int64_t> rows = {0, 1, 2, 1}, cols = {0, 9, 0, -1};
  std::vector<int64_t> indptr(4);
  std::vector<int32_t> indices(4), edge_ids(4);
  CHECK(gw_coo_to_csr(1, 4, rows.data(), cols.data(), 3, 9, 0, indptr.data(), indices.data(), edge_ids.data()) ==
        gw::out_of_range);
  CHECK(std::string(gw_last_error()).find("got 9 at position 1") != std::string::npos);
  CHECK(gw_coo_to_csr(1, 4, rows.data(), cols.data(), 2, 10, 0, indptr.data(), indices.data(), edge_ids.data()) ==
        gw::out_of_range);
  CHECK(std::string(gw_last_error()).find("got 2 at position 2") != std::string::npos);
  CHECK(gw_coo_to_csr(1, -1, nullptr, nullptr, 3, 3, 0, indptr.data(), nullptr, nullptr) == gw::bad_argument);
  CHECK(gw_coo_to_csr(1, 4, rows.data(), cols.data(), 3, int64_t{1} << 40, 0, indptr.data(), indices.data(), nullptr) ==
        gw::bad_argument);
}

TEST(transposing_twice_gives_the_rows_back_in_order) {
  for (const shape& s : shapes) {
    data::graph g(s.rows, s.cols, s.edges, 11, true);
    const gw_adjacency a = g.view();
    std::vector<int64_t> indptr(size_t(s.cols + 1), -1);
    std::vector<int32_t> indices(size_t(s.edges)), ids(size_t(s.edges));
    CHECK(gw_csr_transpose(&a, 0, nullptr, indptr.data(), data::pointer(indices), data::pointer(ids)) == 0);
    std::vector<int64_t> rows(size_t(s.edges)), cols(size_t(s.edges));
    CHECK(gw_csr_to_coo(&a, data::pointer(rows), data::pointer(cols)) == 0);
    for (int64_t c = 0; c < s.cols; ++c) {
      for (int64_t p = indptr[size_t(c)]; p < indptr[size_t(c + 1)]; ++p) {
        CHECK(cols[size_t(ids[size_t(p)])] == c && rows[size_t(ids[size_t(p)])] == indices[size_t(p)]);
        if (p > indptr[size_t(c)]) CHECK(ids[size_t(p - 1)] < ids[size_t(p)]);
      }
    }
    const gw_adjacency t = {s.cols, s.rows, s.edges, indptr.data(), data::pointer(indices), data::pointer(ids), 0};
    std::vector<int64_t> back(size_t(s.rows + 1), -1);
    std::vector<int32_t> back_indices(size_t(s.edges)), back_ids(size_t(s.edges));
    CHECK(gw_csr_transpose(&t, 0, nullptr, back.data(), data::pointer(back_indices), data::pointer(back_ids)) == 0);
    CHECK(back == g.indptr);
    for (size_t p = 0; p < back_ids.size(); ++p) CHECK(back_indices[p] == g.indices[size_t(back_ids[p])]);
  }
}

TEST(payloads_of_both_widths_travel) {
  data::graph g(40, 30, 500, 3);
  const gw_adjacency a = g.view();
  std::vector<int64_t> indptr(31), wide(500), wide_out(500);
  std::vector<float> narrow = data::floats(500, 8), narrow_out(500);
  std::iota(wide.begin(), wide.end(), int64_t{1} << 40);
  std::vector<int32_t> indices(500), ids(500);
  CHECK(gw_csr_transpose(&a, 0, nullptr, indptr.data(), indices.data(), ids.data()) == 0);
  CHECK(gw_csr_transpose(&a, 4, narrow.data(), indptr.data(), indices.data(), narrow_out.data()) == 0);
  CHECK(gw_csr_transpose(&a, 8, wide.data(), indptr.data(), indices.data(), wide_out.data()) == 0);
  for (size_t p = 0; p < 500; ++p) {
    CHECK(narrow_out[p] == narrow[size_t(ids[p])]);
    CHECK(wide_out[p] == wide[size_t(ids[p])]);
  }
  CHECK(gw_csr_transpose(&a, 3, narrow.data(), indptr.data(), indices.data(), narrow_out.data()) == gw::bad_argument);
}

TEST(hostile_structures_are_refused) {
  std::vector<int64_t> indptr = {0, 2, 3};
  std::vector<int32_t> indices = {0, 1, 1}, ids = {0, 2, 1};
  const gw_adjacency good = {2, 2, 3, indptr.data(), indices.data(), ids.data(), 0};
  CHECK(gw_csr_check(&good) == 0);
  for (const std::vector<int64_t>& bad :
       {std::vector<int64_t>{1, 2, 3}, {0, 4, 3}, {0, -1, 3}, {0, 2, 2}, {0, 2, INT64_MAX}, {INT64_MIN, 2, 3}}) {
    const gw_adjacency a = {2, 2, 3, bad.data(), indices.data(), ids.data(), 0};
    CHECK(gw_csr_check(&a) != 0);
  }
  const std::vector<int32_t> beyond = {0, 2, 1}, below = {0, -1, 1}, twice = {0, 1, 1};
  const gw_adjacency high = {2, 2, 3, indptr.data(), beyond.data(), nullptr, 0};
  const gw_adjacency low = {2, 2, 3, indptr.data(), below.data(), nullptr, 0};
  const gw_adjacency repeated = {2, 2, 3, indptr.data(), indices.data(), twice.data(), 0};
  const gw_adjacency negative = {-1, 2, 3, indptr.data(), indices.data(), nullptr, 0};
  CHECK(gw_csr_check(&high) == gw::out_of_range && gw_csr_check(&low) == gw::out_of_range);
  CHECK(gw_csr_check(&repeated) == gw::bad_argument && gw_csr_check(&negative) == gw::bad_argument);
  CHECK(gw_csr_check(nullptr) == gw::bad_argument);
}

TEST(structure_is_told) {
  std::vector<int64_t> indptr = {0, 1, 3, 4};
  std::vector<int32_t> path = {1, 0, 2, 1}, loop = {1, 0, 1, 1};
  const gw_adjacency a = {3, 3, 4, indptr.data(), path.data(), nullptr, 0};
  const gw_adjacency b = {3, 3, 4, indptr.data(), loop.data(), nullptr, 0};
  int32_t answer = -1;
  CHECK(gw_csr_has_loops(&a, &answer) == 0 && answer == 0);
  CHECK(gw_csr_has_loops(&b, &answer) == 0 && answer == 1);
  CHECK(gw_csr_is_symmetric(&a, &answer) == 0 && answer == 1);
  CHECK(gw_csr_is_symmetric(&b, &answer) == 0 && answer == 0);
  std::vector<int64_t> counts(3, -1);
  CHECK(gw_csr_count_columns(&a, counts.data()) == 0);
  CHECK((counts == std::vector<int64_t>{1, 2, 1}));
}
