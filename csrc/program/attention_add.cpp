#include "attention_kernels.h"

namespace program {

template struct Attention<Score::add>;

}  // namespace program
