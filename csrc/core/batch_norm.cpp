// Entry points of batch norms, float32.
#include "graphweft/batch_norm.h"

#include "graphweft/csr.h"

extern "C" {

// y[n, f] = (x - mean) / sqrt(variance + eps) * weight + bias with the statistics of the columns of x, which come out
// as stats[2, f]; `relu`: then max(y, 0). Weight and bias may be null.
GW_API int gw_batch_norm_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* weight, const float* bias,
                             double eps, int32_t relu, float* stats, float* y, int64_t ldy) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0, "gw_batch_norm_f32: a size is negative");
    gw::column_moments(n, f, x, ldx, stats);
    gw::normalise(n, f, x, ldx, stats, stats + f, weight, bias, eps, relu != 0, y, ldy);
  });
}

// The same with mean[f] and variance[f] given.
GW_API int gw_normalise_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* mean, const float* variance,
                            const float* weight, const float* bias, double eps, int32_t relu, float* y, int64_t ldy) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0, "gw_normalise_f32: a size is negative");
    gw::normalise(n, f, x, ldx, mean, variance, weight, bias, eps, relu != 0, y, ldy);
  });
}

// Gradients of gw_batch_norm_f32 without relu, from that of its result dy[n, f]; each of dx[n, f], dweight[f], dbias[f]
// may be null, and dx may be dy.
GW_API int gw_batch_norm_grad_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* dy, int64_t lddy,
                                  const float* weight, const float* stats, double eps, float* dx, int64_t lddx,
                                  float* dweight, float* dbias) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0, "gw_batch_norm_grad_f32: a size is negative");
    gw::batch_norm_gradients(n, f, x, ldx, dy, lddy, weight, stats, eps, dx, lddx, dweight, dbias);
  });
}

// Moves running means and variances by `momentum` towards stats[2, f] of gw_batch_norm_f32 over `rows` rows, the
// variances as those of a sample.
GW_API int gw_track_moments_f32(int64_t f, int64_t rows, const float* stats, double momentum, float* mean,
                                float* variance) {
  return gw::guarded([&] {
    gw::require(f >= 0 && rows >= 0, "gw_track_moments_f32: a size is negative");
    const gw_tracked_norm_f32 norm{f, stats, mean, variance, nullptr, momentum};
    gw::track_norms(&norm, 1, rows);
  });
}

// Moves running means and variances of `norms` norms towards the statistics of gw_batch_norm_f32 over `rows` rows.
GW_API int gw_track_norms_f32(const gw_tracked_norm_f32* table, int64_t norms, int64_t rows) {
  return gw::guarded([&] {
    gw::require(norms >= 0 && rows >= 0, "gw_track_norms_f32: a size is negative");
    gw::track_norms(table, norms, rows);
  });
}
}
