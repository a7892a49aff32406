// Activations and their gradients over elements, float32: what generated kernels compute for them, without a compiler.
#include <initializer_list>

#include "graphweft/abi.h"
#include "graphweft/lanes.h"
#include "graphweft/parallel.h"

namespace {

// out[i] = body(operands...) in whole vectors, in pieces that are worth a thread.
template <class Body>
int over_elements(int64_t n, std::initializer_list<const void*> arrays, Body&& body) {
  return gw::guarded([&] {
    gw::require(n >= 0, "activations: expected a size, got a negative number");
    for (const void* array : arrays) gw::require(n == 0 || array, "activations: expected operands, got null");
    gw::parallel_ranges(n, 16384, [&](int64_t begin, int64_t end) { gw::for_each_lanes<float>(begin, end, body); });
  });
}

}  // namespace

extern "C" {

// y = x where x > 0, else alpha x.
GW_API int gw_leaky_relu_f32(int64_t n, double alpha, const float* x, float* y) {
  const auto slope = float(alpha);
  return over_elements(n, {x, y}, [=](int64_t at, auto part) GW_INLINE_LAMBDA {
    part.store(y + at, gw::lanes_leaky_relu(part.load(x + at), slope));
  });
}

// dx = dy where x > 0, else alpha dy.
GW_API int gw_leaky_relu_grad_f32(int64_t n, double alpha, const float* x, const float* dy, float* dx) {
  const auto slope = float(alpha);
  return over_elements(n, {x, dy, dx}, [=](int64_t at, auto part) GW_INLINE_LAMBDA {
    const auto z = part.load(x + at), g = part.load(dy + at);
    part.store(dx + at, z > gw::vf::splat(0.0f) ? g : g * gw::vf::splat(slope));
  });
}

// y = x where x > 0, else alpha (exp(x) - 1).
GW_API int gw_elu_f32(int64_t n, double alpha, const float* x, float* y) {
  const auto scale = float(alpha);
  return over_elements(n, {x, y}, [=](int64_t at, auto part) GW_INLINE_LAMBDA {
    part.store(y + at, gw::lanes_elu(part.load(x + at), scale));
  });
}

// dx = dy where y > 0, else dy (y + alpha), for a result y of the above with alpha >= 0.
GW_API int gw_elu_grad_f32(int64_t n, double alpha, const float* y, const float* dy, float* dx) {
  const auto scale = float(alpha);
  return over_elements(n, {y, dy, dx}, [=](int64_t at, auto part) GW_INLINE_LAMBDA {
    const auto made = part.load(y + at), g = part.load(dy + at);
    part.store(dx + at, made > gw::vf::splat(0.0f) ? g : g * (made + gw::vf::splat(scale)));
  });
}
}
