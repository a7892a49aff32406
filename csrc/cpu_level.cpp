// The level that this machine runs and whether it has matrix tiles, compiled for every machine: asked as a library
// before any other is loaded, and by builds as a program, which exits with the level.
#include "graphweft/cpu_level.h"

extern "C" __attribute__((visibility("default"))) int gw_cpu_level(void) { return gw::cpu_level(); }
extern "C" __attribute__((visibility("default"))) int gw_cpu_has_tiles(void) { return int(gw::cpu_has_tiles()); }

int main() { return gw_cpu_level(); }
