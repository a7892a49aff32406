// Random graphs: every link stored in both directions where asked, no duplicates, rows ascending.
#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "data.h"
#include "graphweft/entry_points.h"

TEST(a_permutation_is_one) {
  for (const int64_t n : {1, 2, 3, 1000, 65537}) {
    std::vector<int32_t> out(size_t(n), -1);
    CHECK(gw_generate_permutation(n, 5, 1, out.data()) == 0);
    std::sort(out.begin(), out.end());
    for (int64_t i = 0; i < n; ++i) CHECK(out[size_t(i)] == i);
  }
  CHECK(gw_generate_permutation(0, 5, 1, nullptr) == gw::bad_argument);
  CHECK(gw_generate_permutation(int64_t{1} << 40, 5, 1, nullptr) == gw::bad_argument);
}

TEST(links_are_stored_both_ways_once) {
  for (const int64_t n : {10, 500, 20000}) {
    const std::vector<int64_t> block_ptr = {0, n / 3, n / 2, n};
    std::vector<uint32_t> weights(static_cast<size_t>(n));
    std::vector<int64_t> own_ptr(size_t(n + 1), -1), cursor(size_t(n), 0), indptr(size_t(n + 1), -1);
    std::vector<uint64_t> slot_cells(static_cast<size_t>(n)), block_cells(3);
    std::vector<int32_t> members(static_cast<size_t>(n));
    CHECK(gw_generate_weights(n, 1, 2, 1.0, 100.0, 2.5, weights.data()) == 0);
    CHECK(gw_generate_split(n, weights.data(), 2 * n, (n - 1) / 2, own_ptr.data()) == 0);
    CHECK(own_ptr[0] == 0 && own_ptr[size_t(n)] <= 2 * n);
    CHECK(gw_generate_alias(n, 3, block_ptr.data(), weights.data(), slot_cells.data(), block_cells.data()) == 0);
    const int64_t links = own_ptr[size_t(n)];
    std::vector<int32_t> own(size_t(links), -1), indices(size_t(2 * links), -1);
    CHECK(gw_generate_links(n, 3, block_ptr.data(), slot_cells.data(), block_cells.data(), 9, 0.7, own_ptr.data(),
                            own.data()) == 0);
    CHECK(gw_generate_permutation(n, 5, 1, members.data()) == 0);
    CHECK(gw_generate_compress(n, own_ptr.data(), own.data(), members.data(), links, cursor.data(), indptr.data(),
                               indices.data()) == 0);
    CHECK(indptr[size_t(n)] == 2 * links);
    std::set<std::pair<int32_t, int32_t>> edges;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t p = indptr[size_t(i)]; p < indptr[size_t(i + 1)]; ++p) {
        CHECK(indices[size_t(p)] >= 0 && indices[size_t(p)] < n && indices[size_t(p)] != i);
        if (p > indptr[size_t(i)]) CHECK(indices[size_t(p - 1)] < indices[size_t(p)]);
        edges.insert({int32_t(i), indices[size_t(p)]});
      }
    CHECK(int64_t(edges.size()) == 2 * links);
    for (const auto& [a, b] : edges) CHECK(edges.count({b, a}) == 1);
  }
}
