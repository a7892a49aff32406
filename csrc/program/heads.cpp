#include "heads.h"

#include <algorithm>

#include "graphweft/head_rows.h"
#include "graphweft/parallel.h"

extern "C" {
GW_API int gw_part_sum_f32(int64_t n, int64_t parts, int64_t f, const float* x, float* y);
}

namespace program {

void head_dots(const Matrix& x, const float* a, int64_t channels, const Matrix& y) {
  gw::head_dots(x.rows, x.cols / channels, channels, x.at, a, y.at);
}

void head_products(const Matrix& s, const float* a, int64_t channels, const float* addend, const Matrix& y) {
  gw::head_products(s.rows, s.cols, channels, s.at, a, addend, y.at);
}

void head_sums(const Matrix& s, const Matrix& x, int64_t channels, float* y) {
  gw::head_sums(s.rows, s.cols, channels, s.at, x.at, y);
}

void head_matmul(const Matrix& x, const Matrix& w, int64_t heads, Weight form, const Matrix& y) {
  const int64_t in = x.cols / heads, out = y.cols / heads;
  const bool turned = form == Weight::transposed;
  for (int64_t h = 0; h < heads; ++h)
    check(gw_gemm_nn_f32(x.rows, in, out, x.at + h * in, x.cols, w.at + h * (turned ? in : out), w.cols, turned,
                         nullptr, y.at + h * out, y.cols, nullptr, x.rows));
}

void head_outer(const Matrix& x, const Matrix& g, int64_t heads, const Matrix& dw, float* room) {
  const int64_t first = x.cols / heads, second = g.cols / heads, width = heads * second;
  float* to = room ? room : dw.at;
  for (int64_t h = 0; h < heads; ++h)
    check(gw_gemm_tn_f32(x.rows, first, second, x.at + h * first, x.cols, g.at + h * second, g.cols, nullptr,
                         to + h * second, width, nullptr, nullptr, x.rows));
  if (!room) return;
  for (int64_t f = 0; f < second; ++f)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t c = 0; c < first; ++c) dw.at[(f * heads + h) * first + c] = room[c * width + h * second + f];
}

void sum_heads(const Matrix& x, int64_t heads, const Matrix& y) {
  check(gw_part_sum_f32(y.rows, heads, y.cols, x.at, y.at));
}

void repeat_heads(const Matrix& x, int64_t heads, const Matrix& y) {
  const int64_t width = y.cols / heads;
  gw::parallel_ranges(y.rows, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * heads; i < end * heads; ++i)
      std::copy_n(x.at + i / heads * width, width, y.at + i * width);
  });
}

}  // namespace program
