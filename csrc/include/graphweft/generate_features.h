// Labels and features of random graphs: each row depends on its topic (the class of its community) and on its own
// draws, which are pure functions of (seed, row, position).
#pragma once

#include "graphweft/generate.h"

namespace gw::generate {

// topic[id] is the class of the node's community; label[id] is the same, but for a share of nodes any class at random.
inline void draw_labels(const communities& graph, const int32_t* class_of_block, int64_t num_classes, uint64_t seed,
                        double noise, const int32_t* members, int32_t* topic, int64_t* label) {
  parallel_ranges(graph.num_blocks, 1, [&](int64_t block, int64_t) {
    for (int64_t slot = graph.block_ptr[block]; slot < graph.block_ptr[block + 1]; ++slot) {
      const int32_t id = members[slot];
      const uint64_t chance = random_u64(seed, label_draws, 2 * uint64_t(slot));
      topic[id] = class_of_block[block];
      label[id] = to_unit(chance) < noise
                      ? int64_t(to_below(random_u64(seed, label_draws, 2 * uint64_t(slot) + 1), uint64_t(num_classes)))
                      : topic[id];
    }
  });
}

// out[row, k] = value(topic[row], k, sixteen random bits): eight entries for one block of draws.
template <class Value>
void fill_rows(int64_t rows, int64_t width, const int32_t* topic, uint64_t seed, uint64_t stream, float* out,
               Value&& value) {
  const int64_t blocks = (width + 7) / 8;
  parallel_ranges(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const target = out + row * width;
      for (int64_t b = 0; b < blocks; ++b) {
        const u32x4 bits = random_block(seed, value_draws | (stream << 8), uint64_t(row * blocks + b));
        const int64_t first = 8 * b, count = std::min<int64_t>(8, width - first);
        for (int64_t k = 0; k < count; ++k) {
          const uint32_t sixteen = (bits[size_t(k / 2)] >> (16 * (k & 1))) & 0xFFFFu;
          target[first + k] = value(topic[row], first + k, sixteen);
        }
      }
    }
  });
}

inline constexpr int64_t topic_words = 40;  // words that a topic has of its own

// Distinct words per row, ascending: each draw takes a rank by popularity and the word of that rank in the common
// order, or with chance `focus` one of the topic's own words.
inline void draw_words(int64_t rows, int64_t width, const int32_t* topic, int64_t num_topics, uint64_t seed,
                       double focus, const alias_cell* ranks, const int64_t* indptr, int32_t* indices) {
  std::vector<shuffle> orders;
  for (int64_t t = 0; t <= num_topics; ++t)
    orders.emplace_back(uint64_t(width), seed, (uint64_t{1} << 32) + uint64_t(t));
  const auto focus_below = uint32_t(focus * 65535.0);
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
    seen_set seen;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t quota = indptr[row + 1] - indptr[row];
      int32_t* const out = indices + indptr[row];
      int64_t count = 0;
      seen.reset(quota);
      for (uint64_t attempt = 0; count < quota && attempt < uint64_t(16 * quota + 64); ++attempt) {
        const u32x4 bits = random_block(seed, word_draws | (uint64_t(row) << 8), attempt);
        const int64_t rank = draw_alias(ranks, width, bits[0], bits[1]);
        const bool on_topic = (bits[2] & 0xFFFFu) < focus_below;
        const auto word = int32_t(on_topic ? orders[size_t(topic[row])](uint64_t(rank % std::min(topic_words, width)))
                                           : orders[size_t(num_topics)](uint64_t(rank)));
        if (seen.add(word)) out[count++] = word;
      }
      for (int32_t word = int32_t(random_u64(seed, word_draws, uint64_t(row)) % uint64_t(width)); count < quota;
           word = word + 1 < width ? word + 1 : 0)
        if (seen.add(word)) out[count++] = word;
      std::sort(out, out + count);
    }
  });
}

}  // namespace gw::generate
