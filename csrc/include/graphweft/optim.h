// SGD, Adam and AdamW over a table of tensors: each parameter and each state value is read and written once a step.
// Arithmetic and its order are torch's, in float32, so results agree with torch.optim to rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"

extern "C" {

// One tensor of an Adam step; hyperparameters are those of its group.
struct gw_adam_tensor_f32 {
  int64_t size;
  float* param;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  float* step;  // one value, the number of steps taken; advanced by one
  double lr, beta1, beta2, eps, weight_decay;
  int64_t decoupled;  // 1: weight decay shrinks the parameter (AdamW), 0: it is added to the gradient
  int64_t maximize;
};

// One tensor of an SGD step.
struct gw_sgd_tensor_f32 {
  int64_t size;
  float* param;
  const float* grad;
  float* momentum_buffer;  // null: no momentum
  double lr, momentum, dampening, weight_decay;
  int64_t nesterov, maximize;
  int64_t first;  // 1: momentum_buffer is filled with the gradient
};
}

namespace gw {

// Calls body(tensor, begin, end) over chunks of all tensors; small sets stay on the calling thread.
template <class Tensor, class Body>
void over_tensors(const Tensor* table, int64_t count, Body&& body) {
  constexpr int64_t grain = 16384, worth_threads = 65536;
  struct span {
    int64_t tensor, begin, end;
  };
  std::vector<span> spans;
  int64_t total = 0;
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t begin = 0; begin < table[t].size; begin += grain)
      spans.push_back({t, begin, std::min(table[t].size, begin + grain)});
    total += table[t].size;
  }
  const auto run = [&](int64_t s) { body(spans[size_t(s)].tensor, spans[size_t(s)].begin, spans[size_t(s)].end); };
  if (total < worth_threads) {
    for (int64_t s = 0; s < int64_t(spans.size()); ++s) run(s);
  } else {
    parallel_chunks(int64_t(spans.size()), run);
  }
}

struct adam_factors {
  float sign, one_minus_beta1, beta2, one_minus_beta2, step_size, correction, eps, decay, shrink;
};

inline adam_factors factors_of(const gw_adam_tensor_f32& t) {
  const double step = double(*t.step);
  const double correction1 = 1.0 - std::pow(t.beta1, step), correction2 = 1.0 - std::pow(t.beta2, step);
  return {t.maximize ? -1.0f : 1.0f,
          float(1.0 - t.beta1),
          float(t.beta2),
          float(1.0 - t.beta2),
          float(t.lr / correction1),
          float(std::sqrt(correction2)),
          float(t.eps),
          t.decoupled ? 0.0f : float(t.weight_decay),
          t.decoupled ? float(1.0 - t.lr * t.weight_decay) : 1.0f};
}

inline void adam_span(const gw_adam_tensor_f32& t, const adam_factors& f, int64_t begin, int64_t end) {
  float* __restrict param = t.param;
  const float* __restrict grad = t.grad;
  float* __restrict exp_avg = t.exp_avg;
  float* __restrict exp_avg_sq = t.exp_avg_sq;
  for (int64_t i = begin; i < end; ++i) {
    const float w = param[i] * f.shrink;
    const float g = grad[i] * f.sign + f.decay * w;
    const float m = exp_avg[i] + f.one_minus_beta1 * (g - exp_avg[i]);
    const float v = exp_avg_sq[i] * f.beta2 + f.one_minus_beta2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = w - f.step_size * (m / (std::sqrt(v) / f.correction + f.eps));
  }
}

inline void adam(const gw_adam_tensor_f32* table, int64_t count) {
  std::vector<adam_factors> factors;
  factors.reserve(size_t(count));
  for (int64_t t = 0; t < count; ++t) {
    *table[t].step += 1.0f;
    factors.push_back(factors_of(table[t]));
  }
  over_tensors(table, count,
               [&](int64_t t, int64_t begin, int64_t end) { adam_span(table[t], factors[size_t(t)], begin, end); });
}

inline void sgd_span(const gw_sgd_tensor_f32& t, int64_t begin, int64_t end) {
  float* __restrict param = t.param;
  const float* __restrict grad = t.grad;
  float* __restrict buffer = t.momentum_buffer;
  const float sign = t.maximize ? -1.0f : 1.0f, decay = float(t.weight_decay), lr = float(t.lr);
  const float momentum = float(t.momentum), fresh = float(1.0 - t.dampening);
  if (!buffer) {
    for (int64_t i = begin; i < end; ++i) param[i] -= lr * (grad[i] * sign + decay * param[i]);
    return;
  }
  const float keep = t.first ? 0.0f : momentum, take = t.first ? 1.0f : fresh;
  const float of_grad = t.nesterov ? 1.0f : 0.0f, of_buffer = t.nesterov ? momentum : 1.0f;
  if (t.first) std::fill(buffer + begin, buffer + end, 0.0f);
  for (int64_t i = begin; i < end; ++i) {
    const float g = grad[i] * sign + decay * param[i];
    const float b = buffer[i] * keep + take * g;
    buffer[i] = b;
    param[i] -= lr * (of_grad * g + of_buffer * b);
  }
}

inline void sgd(const gw_sgd_tensor_f32* table, int64_t count) {
  over_tensors(table, count, [&](int64_t t, int64_t begin, int64_t end) { sgd_span(table[t], begin, end); });
}

}  // namespace gw
