// Recorded calls as one: words of every kind arrive as the arguments they stand for, cells are set before the first
// call, and the first call that fails is the last.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "graphweft/entry_points.h"
#include "graphweft/replay.h"

namespace {

int64_t number_of(const std::string& name) {
#define GW_NAME(entry) #entry,
  const std::vector<std::string> names{GW_ENTRY_POINTS(GW_NAME)};
#undef GW_NAME
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return int64_t(i);
  return -1;
}

uint64_t address(const void* at) { return reinterpret_cast<uintptr_t>(at); }
uint64_t word(int64_t number) { return uint64_t(number); }
uint64_t bits(double number) {
  uint64_t made = 0;
  std::memcpy(&made, &number, sizeof(made));
  return made;
}

}  // namespace

TEST(recorded_calls_are_made_in_order_up_to_the_first_that_fails) {
  const std::vector<float> x{-1, 2, -3, 4, 5, -6};
  std::vector<float> y(6, 0.0f), sums(2, 0.0f), late(2, 0.0f);
  std::vector<uint64_t> slope{word(6), bits(0.5), address(x.data()), address(y.data())};
  std::vector<uint64_t> total{word(0), word(2), address(y.data()), word(2), address(sums.data())};
  std::vector<uint64_t> wrong{word(-1), word(2), address(y.data()), word(2), address(sums.data())};
  std::vector<uint64_t> last{word(3), word(2), address(y.data()), word(2), address(late.data())};
  const int64_t leaky = number_of("gw_leaky_relu_f32"), sum = number_of("gw_col_sum_f32");
  CHECK(leaky >= 0 && sum >= 0);
  const std::vector<gw_call> calls{{leaky, slope.data()}, {sum, total.data()}, {sum, wrong.data()}, {sum, last.data()}};
  gw_cell rows{&total[0], 8, 0, 3, uint64_t(-3)};
  const std::vector<uint64_t> values{2};
  int64_t done = -1;
  CHECK(gw_replay(&rows, 1, values.data(), calls.data(), 2, &done) == 0 && done == 2);
  CHECK(y == (std::vector<float>{-0.5f, 2, -1.5f, 4, 5, -3}));
  CHECK(sums == (std::vector<float>{3, 3}));  // of 2 * 3 - 3 rows
  CHECK(gw_replay(&rows, 1, values.data(), calls.data(), 4, &done) == 1 && done == 2);
  CHECK(std::string(gw_last_error()).find("gw_col_sum_f32") == 0);
  CHECK(late == (std::vector<float>{0, 0}));
}

TEST(cells_are_numbers_of_two_widths_and_whole_structures) {
  struct {
    int32_t narrow = 0, beside = 7;
    int64_t wide = 0;
  } held;
  gw_adjacency made{}, given{};
  given.num_rows = 11;
  given.wide = 1;
  const std::vector<uint64_t> values{uint64_t(-5), address(&given)};
  const std::vector<gw_cell> cells{
      {&held.narrow, 4, 0, 2, 1}, {&held.wide, 8, 0, 1, 0}, {&made, sizeof(made), 1, 1, 0}};
  int64_t done = -1;
  CHECK(gw_replay(cells.data(), 3, values.data(), nullptr, 0, &done) == 0 && done == 0);
  CHECK(held.narrow == -9 && held.beside == 7 && held.wide == -5);
  CHECK(made.num_rows == 11 && made.wide == 1);
}

TEST(what_is_no_call_and_no_cell_is_refused) {
  const gw_call call{1 << 20, nullptr};
  int64_t done = -1;
  CHECK(gw_replay(nullptr, 0, nullptr, &call, 1, &done) == 1 && done == 0);
  int64_t place = 3;
  const gw_cell cell{&place, 2, 0, 1, 0};
  const uint64_t value = 9;
  CHECK(gw_replay(&cell, 1, &value, nullptr, 0, &done) == 1 && place == 3);
}
