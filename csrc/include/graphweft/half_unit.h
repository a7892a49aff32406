// What multiplies bfloat16 numbers and sums in float: the processor's matrix tiles, its dot products of pairs, or plain
// vectors. One of them is chosen when the first product is asked for.
#pragma once

#include <cstdint>

#include "graphweft/half_pack.h"

namespace gw {

// C (+)= A B for up to 32 rows and 32 columns.
struct half_tile {
  const uint32_t* a;  // [16 tall] rows of words of two numbers, in pieces of 16 words
  int64_t lda;        // words between rows of a piece,
  int64_t next;       // between pieces of a row,
  int64_t lower;      // and from a block of 16 rows to the next
  int tall;           // blocks of 16 rows, 1 or 2
  const uint32_t* b;  // panels [pairs][16], `ldb` words apart
  int64_t ldb;
  int wide;       // panels, 1 or 2
  int64_t pairs;  // of the inner dimension; whole sixteens
  float* c;       // [16 tall][16 wide], `ldc` apart
  int64_t ldc;
  bool add;  // to what is there
};

struct half_unit {
  enum kind : int32_t { vectors = 0, pairs = 1, tiles = 2 };
  kind which;
  void (*begin)();  // before the first product of a thread, and after its last
  void (*end)();
  void (*multiply)(const half_tile& tile);

  [[nodiscard]] half_form form() const noexcept {
    return which == vectors ? half_form::integers : half_form::instructions;
  }
};

// The unit in use.
const half_unit& find_half_unit();

// Units above `most` are left out from now on.
void limit_half_unit(int32_t most);

// A thread's products are made while this lives.
class half_session {
 public:
  explicit half_session(const half_unit& unit) : unit_(unit) { unit_.begin(); }
  ~half_session() { unit_.end(); }
  half_session(const half_session&) = delete;
  half_session& operator=(const half_session&) = delete;
  GW_INLINE void multiply(const half_tile& tile) const { unit_.multiply(tile); }
  [[nodiscard]] half_form form() const noexcept { return unit_.form(); }

 private:
  const half_unit& unit_;
};

}  // namespace gw
