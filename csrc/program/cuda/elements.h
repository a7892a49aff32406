// Functions of one element, with the meaning that they have in the library.
#pragma once

#include <cmath>
#include <cstdint>

#include "device.h"

namespace program {

namespace device {

__device__ inline float neg(float x) { return -x; }
__device__ inline float reciprocal(float x) { return 1.0f / x; }
__device__ inline float square(float x) { return x * x; }
__device__ inline float abs(float x) { return fabsf(x); }
__device__ inline float relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ inline float leaky_relu(float x, float alpha) { return x > 0.0f ? x : x * alpha; }
__device__ inline float exp(float x) { return expf(x); }
__device__ inline float expm1(float x) { return expm1f(x); }
__device__ inline float elu(float x, float alpha) { return x > 0.0f ? x : expm1f(x) * alpha; }
__device__ inline float log(float x) { return logf(x); }
__device__ inline float log1p(float x) { return log1pf(x); }
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float tanh(float x) { return tanhf(x); }
__device__ inline float sqrt(float x) { return sqrtf(x); }
// NaN where either is, as in torch.
__device__ inline float maximum(float x, float y) { return x == x ? (x > y ? x : y) : x; }
__device__ inline float minimum(float x, float y) { return x == x ? (x < y ? x : y) : x; }

}  // namespace device

}  // namespace program
