#include "attention_kernels.h"

namespace program {

template struct Attention<Score::dot>;

}  // namespace program
