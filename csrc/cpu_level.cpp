// The level that this machine runs, compiled for every machine: asked as a library before any other is loaded, and by
// builds as a program, which exits with it.
#include "graphweft/cpu_level.h"

extern "C" __attribute__((visibility("default"))) int gw_cpu_level(void) { return gw::cpu_level(); }

int main() { return gw_cpu_level(); }
