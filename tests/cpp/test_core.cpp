// The error slot, large pages, parallel loops, random numbers.
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "graphweft/abi.h"
#include "graphweft/entry_points.h"
#include "graphweft/parallel.h"
#include "graphweft/rng.h"

namespace {
constexpr int64_t page = int64_t{1} << 21;
}

TEST(pages_are_aligned_zeroed_and_writable) {
  void* pages = nullptr;
  CHECK(gw_pages_map(3 * page, &pages) == 0);
  CHECK(reinterpret_cast<uintptr_t>(pages) % uintptr_t(page) == 0);
  auto* bytes = static_cast<unsigned char*>(pages);
  CHECK(bytes[0] == 0 && bytes[3 * page - 1] == 0);
  bytes[3 * page - 1] = 7;
  CHECK(gw_pages_unmap(pages, 3 * page) == 0);
}

TEST(pages_refuse_odd_sizes_with_one_line) {
  void* pages = nullptr;
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, int64_t{4096}, page + 1, INT64_MIN}) {
    CHECK(gw_pages_map(bytes, &pages) == gw::bad_argument);
    CHECK(std::string(gw_last_error()).find("2 MiB") != std::string::npos);
  }
  CHECK(gw_pages_map((INT64_MAX / page) * page, &pages) == gw::out_of_memory);
}

TEST(every_chunk_runs_once) {
  for (const int64_t chunks : {0, 1, 2, 7, 1000}) {
    std::vector<int> runs(size_t(chunks), 0);
    gw::parallel_chunks(chunks, [&](int64_t chunk) { ++runs[size_t(chunk)]; });
    for (const int count : runs) CHECK(count == 1);
  }
}

TEST(ranges_cover_everything_in_order_of_chunks) {
  for (const int64_t n : {0, 1, 63, 64, 65, 1000}) {
    std::vector<int> seen(size_t(n), 0);
    gw::parallel_ranges(n, 64, [&](int64_t begin, int64_t end) {
      CHECK(begin % 64 == 0 && begin < end && end <= n);
      for (int64_t i = begin; i < end; ++i) ++seen[size_t(i)];
    });
    for (const int count : seen) CHECK(count == 1);
  }
}

TEST(an_exception_leaves_a_parallel_loop) {
  std::atomic<int> ran{0};
  const int status = gw::guarded([&] {
    gw::parallel_chunks(50, [&](int64_t chunk) {
      ++ran;
      if (chunk % 10 == 3) throw gw::error(gw::out_of_range, "chunk is bad");
    });
  });
  CHECK(status == gw::out_of_range);
  CHECK(std::string(gw_last_error()) == "chunk is bad");
  CHECK(ran > 0);
}

TEST(errors_belong_to_their_thread) {
  CHECK(gw::guarded([] { gw::require(false, "mine"); }) == gw::bad_argument);
  std::string other;
  std::thread([&] {
    (void)gw::guarded([] { throw std::runtime_error("theirs"); });
    other = gw_last_error();
  }).join();
  CHECK(std::string(gw_last_error()) == "mine");
  CHECK(other == "theirs");
}

TEST(sizes_that_overflow_are_refused) {
  CHECK(gw::guarded([] { (void)gw::checked_mul(INT64_MAX / 2, 3); }) == gw::bad_argument);
  CHECK(gw::guarded([] { (void)gw::checked_mul(INT64_MIN, -1); }) == gw::bad_argument);
  CHECK(gw::checked_mul(-4, 5) == -20);
}

// Known answers of Philox 4x32-10 from the authors' Random123 distribution.
TEST(philox_gives_the_published_answers) {
  const gw::u32x4 zeros = gw::philox4x32({0, 0, 0, 0}, 0, 0);
  CHECK(zeros == (gw::u32x4{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  const uint32_t f = 0xffffffffu;
  CHECK(gw::philox4x32({f, f, f, f}, f, f) == (gw::u32x4{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
}

TEST(draws_stay_in_range) {
  CHECK(gw::to_unit(UINT64_MAX) < 1.0 && gw::to_unit(0) == 0.0);
  CHECK(gw::to_below(UINT64_MAX, 7) == 6 && gw::to_below(0, 7) == 0 && gw::to_below(UINT64_MAX, 1) == 0);
}

// Every single bit counts, wherever it lies; zeros of another number are something else; threads do not matter.
TEST(fingerprints_see_every_bit_and_no_threads) {
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1000}, size_t{300'001}}) {
    std::vector<unsigned char> bytes(size + 3);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 37 + i / 251);
    uint64_t first[2], other[2];
    CHECK(gw_fingerprint(bytes.data() + 3, int64_t(size), first) == 0);
    const size_t step = size < 100 ? 1 : size / 97;
    for (size_t at = 0; at < size; at += step)
      for (int bit = 0; bit < 8; ++bit) {
        bytes[3 + at] = static_cast<unsigned char>(bytes[3 + at] ^ (1 << bit));
        CHECK(gw_fingerprint(bytes.data() + 3, int64_t(size), other) == 0);
        CHECK(other[0] != first[0] && other[1] != first[1]);
        bytes[3 + at] = static_cast<unsigned char>(bytes[3 + at] ^ (1 << bit));
      }
    gw::set_num_threads(1);
    CHECK(gw_fingerprint(bytes.data() + 3, int64_t(size), other) == 0);
    CHECK(other[0] == first[0] && other[1] == first[1]);
    gw::set_num_threads(4);
  }
  const std::vector<unsigned char> zeros(256, 0);
  uint64_t some[2], more[2];
  CHECK(gw_fingerprint(zeros.data(), 64, some) == 0 && gw_fingerprint(zeros.data(), 128, more) == 0);
  CHECK(some[0] != more[0]);
  CHECK(gw_fingerprint(nullptr, 0, some) == 0);
  CHECK(gw_fingerprint(nullptr, 1, some) == gw::bad_argument);
  CHECK(gw_fingerprint(zeros.data(), -1, some) == gw::bad_argument);
}
