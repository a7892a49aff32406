// For the build: exits with the level that this machine runs.
#include "graphweft/cpu_level.h"

int main() { return gw::cpu_level(); }
