// The types that cross the C ABI, and how a failure crosses it.
//
// Every entry point is `extern "C" GW_API int gw_<verb>_<dtype>(...)` over plain pointers and sizes. It returns 0, or a
// positive code after storing one line for gw_last_error(). No torch, no Python: the ahead-of-time core, generated
// kernels, the C++ tests and stand-alone programs all include this file.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#include "graphweft/adjacency.h"

extern "C" {

// What is done to a finished output row before its one store, in this order. Null or 0: that stage is skipped.
struct gw_epilogue_f32 {
  const float* row_scale;  // [n]      t *= row_scale[i]
  const float* bias;       // [f]      t += bias[k]
  const float* addend;     // [n, f]   t += addend[i, k]
  int64_t ld_addend;       //          elements between rows
  int32_t relu;            //          t = max(t, 0), NaN stays NaN
  const float* mask;       // [n, f]   t = mask[i, k] > 0 ? t : 0
  int64_t ld_mask;
  float* col_sum;               // [f] out  column sums of t as it is here, in a fixed order for any thread count
  const float* post_scale;      // [n]      t *= post_scale[i]
  int64_t addend_rows;          //          rows of the addend: those from here on add nothing; 0: it has all n
  const uint16_t* half_mask;    // [n, f] in place of mask: the same in bfloat16; sums over edges alone take it
  const uint16_t* half_addend;  // [n, f] in place of addend: the same in bfloat16; sums over edges alone take it
};

// One left operand of a product with several, y = epilogue(sum of the terms' products): rows of x as they lie, rows of
// a table x by index, or for each row the sum of the table's rows at its edges.
struct gw_term_f32 {
  int64_t k;                  // columns of x
  const void* x;              // [n, k], or a table [table_rows, k]: float, or bfloat16 where `half` is not 0
  int64_t ldx;                //          elements between rows
  int64_t table_rows;         // read with `rows` only; of sums, edges->num_cols
  const int64_t* rows;        // [n] row i is row rows[i] of x; null: no index
  const gw_adjacency* edges;  // [n rows] row i is the sum of x[j] over the edges j of row i; null: no sum
  const float* row_scale;     // [n]      the sums are multiplied by row_scale[i]; null: not
  float* kept;                // [n, k] out: the scaled sums; null: not wanted
  int64_t ld_kept;            //          elements between rows
  const float* w;             // [k, m], or, when w_transposed, [m, k]
  int64_t ldw;
  int32_t w_transposed;
  int32_t half;
  uint16_t* half_kept;  // [n, k] out, in place of kept: the scaled sums in bfloat16, where operands are rounded
};

// One left operand of contractions with a common right one: dw = x^T G, x rows as they lie or rows of a table by index.
struct gw_left_f32 {
  int64_t k;            // columns of x
  const void* x;        // [n, k], or a table [table_rows, k]: float, or bfloat16 where `half` is not 0
  int64_t ldx;          //          elements between rows
  int64_t table_rows;   // read with `rows` only
  const int64_t* rows;  // [n] row i is row rows[i] of x; null: no index
  float* dw;            // [k, m] out
  int64_t lddw;
  int32_t half;
};

// A generated kernel over rows begin to end of its operands.
typedef void (*gw_row_kernel)(int64_t begin, int64_t end, const float* const* in, float* out);

GW_API const char* gw_last_error(void);
}

namespace gw {

enum status : int {
  ok = 0,
  bad_argument = 1,
  out_of_range = 2,
  out_of_memory = 3,
  io_failed = 4,
  internal = 5,
  not_compiled = 6,  // of first_use.h; the message is the name of the kernels
};

// A failure with its code; the entry points translate it by `guarded`.
class error : public std::runtime_error {
 public:
  error(status code, const std::string& what) : std::runtime_error(what), code_(code) {}
  [[nodiscard]] status code() const noexcept { return code_; }

 private:
  status code_;
};

void set_last_error(const char* what) noexcept;

// Runs `body`, turns what it throws into a status code and a message. Nothing ever throws across the C ABI.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return ok;
  } catch (const error& failure) {
    set_last_error(failure.what());
    return failure.code();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return out_of_memory;
  } catch (const std::exception& failure) {
    set_last_error(failure.what());
    return internal;
  }
}

inline void require(bool condition, const char* what) {
  if (!condition) throw error(bad_argument, what);
}

// a * b as int64, or an error: sizes come from files and users.
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) throw error(bad_argument, "size overflows 64 bits");
  return out;
}

}  // namespace gw
