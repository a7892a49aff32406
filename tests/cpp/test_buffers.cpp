// Buffers of kernels that are kept from call to call.
#include <cstddef>
#include <cstdint>

#include "check.h"
#include "graphweft/kept_buffers.h"

namespace {

#if defined(GW_MAPS_BUFFERS)
constexpr size_t unit = size_t{1} << 20;

struct lent {
  size_t bytes;
  void* memory;

  lent(gw::buffer_store& store, size_t wanted) : bytes(wanted), memory(store.take(bytes)) {}
};

TEST(buffers_that_were_given_back_are_lent_again) {
  gw::buffer_store store;
  const lent one(store, 2 * unit - 5), other(store, unit);
  CHECK(one.bytes == 2 * unit && other.bytes == unit);
  store.give(one.memory, one.bytes);
  store.give(other.memory, other.bytes);
  const lent smallest(store, unit / 2), beside(store, unit / 2);
  CHECK(smallest.memory == other.memory && smallest.bytes == unit);
  CHECK(beside.memory == one.memory && beside.bytes == 2 * unit);
  store.give(beside.memory, beside.bytes);
  store.give(smallest.memory, smallest.bytes);
}

TEST(larger_buffers_take_the_place_of_free_ones) {
  gw::buffer_store store;
  const lent held(store, unit), one(store, unit), other(store, 2 * unit);
  store.give(one.memory, one.bytes);
  store.give(other.memory, other.bytes);
  const lent most(store, 8 * unit);
  store.give(most.memory, most.bytes);
  const lent first(store, unit), second(store, unit);
  CHECK(first.memory == most.memory);
  CHECK(second.bytes == unit && second.memory != held.memory);
  store.give(first.memory, first.bytes);
}
#endif

TEST(small_buffers_and_empty_ones_begin_on_a_cache_line) {
  for (const int64_t count : {0, 1, 1000}) {
    const gw::float_buffer made = gw::make_buffer(count);
    CHECK(made.get_deleter().kept == 0);
    CHECK(reinterpret_cast<uintptr_t>(made.get()) % 64 == 0);
  }
}

}  // namespace
