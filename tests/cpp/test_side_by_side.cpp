// Graphs taken out of a block-diagonal structure: every entry is that of its graph, shifted; exact sizes of arrays show
// reads and writes beyond them. The same from Python's side is compared with graphs made of their edges.
#include <cstdint>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

namespace {

// Graphs side by side whose edges are numbered by a rule that is no order of the entries.
struct whole {
  std::vector<int64_t> ptr{0}, edge_ptr{0}, indptr{0};
  std::vector<int32_t> indices, edge_ids;

  explicit whole(const std::vector<int64_t>& sizes) {
    for (const int64_t size : sizes) {
      const int64_t first = ptr.back(), begin = edge_ptr.back();
      for (int64_t row = 0; row < size; ++row) {
        for (int64_t entry = 0; entry < row % 4; ++entry) indices.push_back(int32_t(first + (row * 7 + entry) % size));
        indptr.push_back(int64_t(indices.size()));
      }
      const int64_t count = int64_t(indices.size()) - begin;
      for (int64_t entry = 0; entry < count; ++entry) edge_ids.push_back(int32_t(begin + count - 1 - entry));
      ptr.push_back(first + size);
      edge_ptr.push_back(begin + count);
    }
  }

  gw_adjacency view(bool numbered) {
    const int64_t nodes = ptr.back();
    return {nodes,
            nodes,
            int64_t(indices.size()),
            indptr.data(),
            data::pointer(indices),
            numbered ? data::pointer(edge_ids) : nullptr,
            0};
  }
};

}  // namespace

TEST(graphs_side_by_side_are_shifted_copies) {
  whole all({3, 0, 9, 1, 40, 5});
  for (const bool numbered : {false, true})
    for (std::vector<int64_t> ids : {std::vector<int64_t>{},
                                     {1},
                                     {4, 2, 4},
                                     {5, 3, 1, 0},
                                     {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 4, 4, 4, 4, 4, 2}}) {
      const int64_t n = int64_t(ids.size());
      const gw_adjacency view = all.view(numbered);
      std::vector<int64_t> ptr(size_t(n) + 1, -1), edge_ptr(size_t(n) + 1, -1);
      CHECK(gw_parts_offsets(n, data::pointer(ids), all.ptr.data(), all.edge_ptr.data(), ptr.data(), edge_ptr.data()) ==
            0);
      const size_t rows = size_t(ptr.back()), entries = size_t(edge_ptr.back());
      std::vector<int64_t> nodes(rows, -1), owners(rows, -1), edges(entries, -1), indptr(rows + 1, -1);
      std::vector<int32_t> indices(entries, -1), numbers(numbered ? entries : 0, -1);
      CHECK(gw_parts_places(n, data::pointer(ids), all.ptr.data(), ptr.data(), data::pointer(nodes),
                            data::pointer(owners)) == 0);
      CHECK(gw_parts_places(n, data::pointer(ids), all.edge_ptr.data(), edge_ptr.data(), data::pointer(edges),
                            nullptr) == 0);
      std::vector<int64_t> table(size_t(all.ptr.back()) * 3), picked(rows * 3, -1), alone(rows, -1);
      for (size_t i = 0; i < table.size(); ++i) table[i] = int64_t(i);
      CHECK(gw_parts_rows(n, data::pointer(ids), all.ptr.data(), ptr.data(), table.data(), 24, data::pointer(picked)) ==
            0);
      for (size_t i = 0; i < picked.size(); ++i) CHECK(picked[i] == nodes[i / 3] * 3 + int64_t(i % 3));
      CHECK(gw_parts_places(n, data::pointer(ids), all.ptr.data(), ptr.data(), nullptr, data::pointer(alone)) == 0);
      CHECK(alone == owners);
      CHECK(gw_parts_take(&view, n, data::pointer(ids), all.ptr.data(), ptr.data(), edge_ptr.data(), indptr.data(),
                          data::pointer(indices), data::pointer(numbers)) == 0);
      CHECK(indptr.front() == 0 && indptr.back() == int64_t(entries));
      for (size_t row = 0; row < rows; ++row) {
        const int64_t node = nodes[row], at = all.indptr[size_t(node)];
        CHECK(owners[row] >= 0 && ptr[size_t(owners[row])] <= int64_t(row));
        CHECK(indptr[row + 1] - indptr[row] == all.indptr[size_t(node) + 1] - at);
        for (int64_t p = indptr[row]; p < indptr[row + 1]; ++p) {
          const size_t from = size_t(at + p - indptr[row]);
          CHECK(nodes[size_t(indices[size_t(p)])] == all.indices[from]);
          CHECK(owners[size_t(indices[size_t(p)])] == owners[row]);
          if (numbered) CHECK(edges[size_t(numbers[size_t(p)])] == all.edge_ids[from]);
        }
      }
    }
}

TEST(numbers_of_edges_that_are_not_there_are_refused) {
  whole all({3, 4});
  const gw_adjacency view = all.view(false);
  std::vector<int64_t> ids{0}, ptr{0, 3}, edge_ptr{0, all.edge_ptr[1]}, indptr(4);
  std::vector<int32_t> indices(all.indices.size(), -1), numbers(all.indices.size(), -1);
  CHECK(gw_parts_take(&view, 1, ids.data(), all.ptr.data(), ptr.data(), edge_ptr.data(), indptr.data(),
                      data::pointer(indices), data::pointer(numbers)) != 0);
  CHECK(gw_parts_take(nullptr, 1, ids.data(), all.ptr.data(), ptr.data(), edge_ptr.data(), indptr.data(),
                      data::pointer(indices), nullptr) != 0);
}
