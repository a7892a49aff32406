// Entry points of the random graphs: check, then call.
#include "graphweft/generate.h"

#include "graphweft/abi.h"
#include "graphweft/generate_features.h"

namespace {

using namespace gw::generate;

communities view(int64_t num_slots, int64_t num_blocks, const int64_t* block_ptr, const void* slot_cells,
                 const void* block_cells) {
  gw::require(num_slots > 0 && num_slots <= INT32_MAX, "generate: expected 1 to 2^31 - 1 nodes");
  gw::require(num_blocks > 0 && block_ptr != nullptr, "generate: expected at least one community");
  gw::require(block_ptr[0] == 0 && block_ptr[num_blocks] == num_slots, "generate: communities do not cover the nodes");
  for (int64_t b = 0; b < num_blocks; ++b)
    gw::require(block_ptr[b] <= block_ptr[b + 1], "generate: community bounds descend");
  return {num_slots, num_blocks, block_ptr, static_cast<const alias_cell*>(slot_cells),
          static_cast<const alias_cell*>(block_cells)};
}

void require_range(int64_t n) { gw::require(n > 0 && n <= INT32_MAX, "generate: expected 1 to 2^31 - 1 items"); }

}  // namespace

extern "C" {

// out[i]: a random permutation of [0, n).
GW_API int gw_generate_permutation(int64_t n, uint64_t seed, uint64_t stream, int32_t* out) {
  return gw::guarded([&] {
    require_range(n);
    const shuffle order(uint64_t(n), seed, stream);
    gw::parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = int32_t(order(uint64_t(i)));
    });
  });
}

// out[i]: power-law weights in 1/1024, in random order.
GW_API int gw_generate_weights(int64_t n, uint64_t seed, uint64_t stream, double low, double high, double exponent,
                               uint32_t* out) {
  return gw::guarded([&] {
    require_range(n);
    gw::require(low > 0 && high >= low && exponent > 1, "generate: expected 0 < low <= high and exponent > 1");
    draw_weights(n, seed, stream, {low, high, exponent}, out);
  });
}

// ptr[n + 1]: `total` split in proportion to the weights, at most `cap` each.
GW_API int gw_generate_split(int64_t n, const uint32_t* weights, int64_t total, int64_t cap, int64_t* ptr) {
  return gw::guarded([&] {
    require_range(n);
    gw::require(total >= 0 && cap >= 0, "generate: expected total and cap >= 0");
    split_total(n, weights, total, cap, ptr);
  });
}

// slot_cells[n], block_cells[num_blocks]: alias tables of each community and over the communities, 8 bytes a cell.
GW_API int gw_generate_alias(int64_t n, int64_t num_blocks, const int64_t* block_ptr, const uint32_t* weights,
                             void* slot_cells, void* block_cells) {
  return gw::guarded([&] {
    view(n, num_blocks, block_ptr, slot_cells, block_cells);
    std::vector<uint64_t> totals(static_cast<size_t>(num_blocks), 0);
    gw::parallel_chunks(num_blocks, [&](int64_t b) {
      const int64_t begin = block_ptr[b], end = block_ptr[b + 1];
      for (int64_t i = begin; i < end; ++i) totals[size_t(b)] += weights[i];
      build_alias(end - begin, weights + begin, static_cast<alias_cell*>(slot_cells) + begin);
    });
    build_alias(num_blocks, totals.data(), static_cast<alias_cell*>(block_cells));
  });
}

// own[own_ptr[n]]: the slots each slot is linked to as owner.
GW_API int gw_generate_links(int64_t n, int64_t num_blocks, const int64_t* block_ptr, const void* slot_cells,
                             const void* block_cells, uint64_t seed, double inside_share, const int64_t* own_ptr,
                             int32_t* own) {
  return gw::guarded([&] {
    const communities graph = view(n, num_blocks, block_ptr, slot_cells, block_cells);
    for (int64_t i = 0; i < n; ++i)
      gw::require(own_ptr[i + 1] - own_ptr[i] <= (n - 1) / 2, "generate: a node owns more links than it can have");
    draw_links(graph, seed, inside_share, own_ptr, own);
  });
}

// In-edges of every node by public id; `back` of the links run both ways.
GW_API int gw_generate_compress(int64_t n, const int64_t* own_ptr, const int32_t* own, const int32_t* members,
                                int64_t back, int64_t* cursor, int64_t* indptr, int32_t* indices) {
  return gw::guarded([&] {
    require_range(n);
    gw::require(back >= 0 && back <= own_ptr[n], "generate: expected 0 <= back <= links");
    compress_links(n, own_ptr, own, members, back, cursor, indptr, indices);
  });
}

GW_API int gw_generate_labels(int64_t n, int64_t num_blocks, const int64_t* block_ptr, const int32_t* class_of_block,
                              int64_t num_classes, uint64_t seed, double noise, const int32_t* members, int32_t* topic,
                              int64_t* label) {
  return gw::guarded([&] {
    const communities graph = view(n, num_blocks, block_ptr, nullptr, nullptr);
    draw_labels(graph, class_of_block, num_classes, seed, noise, members, topic, label);
  });
}

// out[row, k] = centers[topic[row], k] + quantiles[16 random bits].
GW_API int gw_generate_values_f32(int64_t rows, int64_t width, const int32_t* topic, uint64_t seed, uint64_t stream,
                                  const float* centers, const float* quantiles, float* out) {
  return gw::guarded([&] {
    gw::checked_mul(gw::checked_mul(rows, width), 4);
    fill_rows(rows, width, topic, seed, stream, out,
              [=](int32_t t, int64_t k, uint32_t bits) { return centers[t * width + k] + quantiles[bits]; });
  });
}

// out[row, k] = 1 with chance chances[topic[row], k] / 65536, else 0.
GW_API int gw_generate_bits_f32(int64_t rows, int64_t width, const int32_t* topic, uint64_t seed, uint64_t stream,
                                const int32_t* chances, float* out) {
  return gw::guarded([&] {
    gw::checked_mul(gw::checked_mul(rows, width), 4);
    fill_rows(rows, width, topic, seed, stream, out, [=](int32_t t, int64_t k, uint32_t bits) {
      return int32_t(bits) < chances[t * width + k] ? 1.0f : 0.0f;
    });
  });
}

// Distinct word ids per row; popularity[width] are the weights of the ranks.
GW_API int gw_generate_words(int64_t rows, int64_t width, const int32_t* topic, int64_t num_topics, uint64_t seed,
                             double focus, const uint32_t* popularity, const int64_t* indptr, int32_t* indices) {
  return gw::guarded([&] {
    require_range(width);
    for (int64_t i = 0; i < rows; ++i)
      gw::require(indptr[i + 1] - indptr[i] <= width, "generate: a row has more words than there are");
    std::vector<alias_cell> ranks(static_cast<size_t>(width));
    build_alias(width, popularity, ranks.data());
    draw_words(rows, width, topic, num_topics, seed, focus, ranks.data(), indptr, indices);
  });
}
}
