// Entry points of the optimisers: one call a step over all float32 tensors.
#include "graphweft/optim.h"

extern "C" {

GW_API int gw_adam_f32(const gw_adam_tensor_f32* table, int64_t count) {
  return gw::guarded([&] {
    gw::require(count >= 0 && (table || count == 0), "gw_adam_f32: expected a table of tensors");
    gw::adam(table, count);
  });
}

GW_API int gw_sgd_f32(const gw_sgd_tensor_f32* table, int64_t count) {
  return gw::guarded([&] {
    gw::require(count >= 0 && (table || count == 0), "gw_sgd_f32: expected a table of tensors");
    gw::sgd(table, count);
  });
}
}
