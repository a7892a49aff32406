// A sample of a sample, told in the numbering of the whole graph: an entry point for nested stages of sampling.
#include "graphweft/abi.h"
#include "graphweft/parallel.h"

extern "C" {

// Row r of a sample lists entries indptr[r] .. indptr[r + 1], entry p being place places[p] in row nodes[r] of an outer
// sample, whose row i begins at entry outer_indptr[i]. out [entries]: the places that those entries of the outer sample
// have in the rows of the graph it was drawn from. touched: null, or a byte per entry of the outer sample, set to 1.
GW_API int gw_sample_compose(int64_t rows, const int64_t* nodes, const int64_t* indptr, const uint32_t* places,
                             const int64_t* outer_indptr, const uint32_t* outer_places, uint32_t* out,
                             uint8_t* touched) {
  return gw::guarded([&] {
    gw::require(rows >= 0, "gw_sample_compose: negative size");
    gw::parallel_ranges(rows, 2048, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t base = outer_indptr[nodes[row]];
        for (int64_t p = indptr[row]; p < indptr[row + 1]; ++p) {
          out[p] = outer_places[base + int64_t(places[p])];
          if (touched != nullptr) touched[base + int64_t(places[p])] = 1;  // rows are distinct: nobody else writes it
        }
      }
    });
  });
}
}
