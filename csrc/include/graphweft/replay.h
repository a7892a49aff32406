// Recorded calls of entry points as data, and numbers within them that are others in every replay.
#pragma once

#include <cstdint>

extern "C" {

// One call: which entry point, counted in the order of their names, and a word for each of its arguments: a number,
// sign-extended, the bits of a double, or an address.
struct gw_call {
  int64_t entry;
  const uint64_t* words;
};

// A place that is written before a replay. Of at most 8 bytes: `times` values[source] plus `more`. Of more: a copy of
// the structure whose address values[source] is.
struct gw_cell {
  void* at;
  int64_t bytes;
  int64_t source;
  uint64_t times;
  uint64_t more;
};
}
