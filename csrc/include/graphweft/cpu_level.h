// The instruction set levels that the core is compiled for, and what else this CPU has.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

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

#if defined(__x86_64__)
// Word `reg` of cpuid's leaf 7, as eax, ebx, ecx, edx.
inline unsigned cpu_feature_word(unsigned sub, int reg) {
  unsigned words[4] = {};
  if (!__get_cpuid_count(7, sub, &words[0], &words[1], &words[2], &words[3])) return 0;
  return words[reg];
}
#endif

// Whether products of matrix tiles (AMX, of bfloat16 numbers) can be made at level 2. The system gives a process the
// tiles' registers when it asks for them.
inline bool cpu_has_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long ask = 0x1023, tile_data = 18;
  const unsigned features = cpu_feature_word(0, 3);
  if (cpu_level() != 2 || (features >> 22 & 1u) == 0 || (features >> 24 & 1u) == 0) return false;
  return syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace gw
