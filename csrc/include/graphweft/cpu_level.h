// The instruction set levels that the core is compiled for, and the best of them that this CPU runs.
#pragma once

namespace gw {

// 2 avx512 (x86-64-v4), 1 avx2 (x86-64-v3), 0 portable.
inline int cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 1;
#endif
  return 0;
}

}  // namespace gw
