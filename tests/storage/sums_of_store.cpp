// Reads a store with the headers alone: sums of every block of every part, a line each. Test of graphweft/store.h.
#include <cstdio>
#include <exception>

#include "graphweft/store.h"

namespace {

// Sums that any reader gets the same: of integers modulo 2^64, of floats in double in their order, of their bits else.
void print_sum(const gw::mapped_part& part, const gw::store_block& block) {
  const int64_t count = block.nbytes / gw::bytes_of_dtype(block.dtype);
  if (block.dtype == "float32") {
    const float* values = part.values<float>(block.name);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += values[i];
    std::printf("%s %a\n", block.name.c_str(), sum);
    return;
  }
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (block.dtype == "int64") sum += static_cast<uint64_t>(part.values<int64_t>(block.name)[i]);
    if (block.dtype == "int32") sum += static_cast<uint64_t>(part.values<int32_t>(block.name)[i]);
    if (block.dtype == "uint8") sum += part.values<uint8_t>(block.name)[i];
    if (gw::bytes_of_dtype(block.dtype) == 2) sum += part.values<uint16_t>(block.name)[i];
  }
  std::printf("%s %llu\n", block.name.c_str(), static_cast<unsigned long long>(sum));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const gw::store store(argc > 1 ? argv[1] : ".");
    std::printf("%s %lld %lld %lld %lld %zu\n", store.name.c_str(), static_cast<long long>(store.num_nodes),
                static_cast<long long>(store.num_edges), static_cast<long long>(store.num_classes),
                static_cast<long long>(store.num_features), store.parts.size());
    for (size_t number = 0; number < store.parts.size(); ++number) {
      const gw::mapped_part part = store.part(static_cast<int64_t>(number));
      part.verify();
      int64_t sources = 0;
      for (int64_t place = 0; place < part.entry().edges; ++place) sources += part.source(place);
      std::printf("part %lld %lld\n", static_cast<long long>(part.entry().first), static_cast<long long>(sources));
      for (const gw::store_block& block : part.entry().blocks) print_sum(part, block);
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
