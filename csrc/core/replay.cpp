// A list of recorded calls as one: what is left of a step between two kernels is a jump through a table.
#include "graphweft/replay.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "graphweft/abi.h"
#include "graphweft/entry_points.h"

namespace gw {
namespace {

template <class T>
T word_as(uint64_t word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(static_cast<uintptr_t>(word));
  } else if constexpr (std::is_same_v<T, double>) {
    double value = 0.0;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  } else {
    static_assert(std::is_integral_v<T>, "arguments are numbers or addresses");
    return static_cast<T>(word);
  }
}

// Entry points of any parameters as functions of words.
template <auto Entry>
struct by_words;

template <class... Args, int (*Entry)(Args...)>
struct by_words<Entry> {
  static int call(const uint64_t* words) { return spread(words, std::index_sequence_for<Args...>()); }
  template <size_t... At>
  static int spread([[maybe_unused]] const uint64_t* words, std::index_sequence<At...> /*unused*/) {
    return Entry(word_as<Args>(words[At])...);
  }
};

using entry = int (*)(const uint64_t*);
#define GW_BY_WORDS(name) &by_words<&name>::call,
constexpr entry entries[] = {GW_ENTRY_POINTS(GW_BY_WORDS)};
#undef GW_BY_WORDS
constexpr int64_t num_entries = int64_t(sizeof(entries) / sizeof(entries[0]));

void set_cell(const gw_cell& cell, const uint64_t* values) {
  const uint64_t value = values[cell.source];
  if (cell.bytes > 8) {
    std::memcpy(cell.at, reinterpret_cast<const void*>(static_cast<uintptr_t>(value)), size_t(cell.bytes));
    return;
  }
  const uint64_t made = value * cell.times + cell.more;
  if (cell.bytes == 8) {
    std::memcpy(cell.at, &made, sizeof(made));
  } else {
    const auto narrow = static_cast<uint32_t>(made);
    std::memcpy(cell.at, &narrow, sizeof(narrow));
  }
}

}  // namespace
}  // namespace gw

extern "C" {

// Sets the cells, then makes the calls in order, on the calling thread, up to the first that fails, whose status is
// returned with its message. *done = how many were made before it.
GW_API int gw_replay(const gw_cell* cells, int64_t num_cells, const uint64_t* values, const gw_call* calls,
                     int64_t num_calls, int64_t* done) {
  *done = 0;
  const int checked = gw::guarded([&] {
    for (int64_t i = 0; i < num_cells; ++i)
      gw::require(cells[i].bytes == 4 || cells[i].bytes >= 8, "gw_replay: a cell is neither of 4 nor of 8 bytes");
    for (int64_t i = 0; i < num_calls; ++i)
      gw::require(calls[i].entry >= 0 && calls[i].entry < gw::num_entries, "gw_replay: no such entry point");
  });
  if (checked != gw::ok) return checked;
  for (int64_t i = 0; i < num_cells; ++i) gw::set_cell(cells[i], values);
  for (; *done < num_calls; ++*done) {
    const int status = gw::entries[calls[*done].entry](calls[*done].words);
    if (status != gw::ok) return status;
  }
  return gw::ok;
}
}
