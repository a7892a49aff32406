// The register tiles of the dense products, compiled once: GW_GEMM_TILES(extern) where they are called, GW_GEMM_TILES()
// in gemm.cpp.
#pragma once

#include "graphweft/gemm.h"
#include "graphweft/gemm_tn.h"

#ifdef GW_PLAIN_ROWS  // operands are rows as they lie: nothing is gathered, so nothing is fetched ahead
#define GW_GEMM_QUEUED(kind, vectors, lanes)
#else
#define GW_GEMM_QUEUED(kind, vectors, lanes) \
  kind template void gw::gemm_panel_of<vectors, lanes, true>(const gw::gemm_block&);
#endif

#define GW_GEMM_TILE(kind, vectors, lanes)                                            \
  kind template void gw::gemm_panel_of<vectors, lanes, false>(const gw::gemm_block&); \
  GW_GEMM_QUEUED(kind, vectors, lanes)                                                \
  kind template void gw::gemm_tn_panel<vectors, lanes>(const gw::gemm_tn_block&);

#if defined(__AVX512F__)
#define GW_GEMM_TILES(kind)             \
  GW_GEMM_TILE(kind, 1, gw::half_lanes) \
  GW_GEMM_TILE(kind, 1, gw::vf::lanes)  \
  GW_GEMM_TILE(kind, 2, gw::vf::lanes)  \
  GW_GEMM_TILE(kind, 3, gw::vf::lanes)  \
  GW_GEMM_TILE(kind, 4, gw::vf::lanes)
#elif defined(__AVX2__)
#define GW_GEMM_TILES(kind)             \
  GW_GEMM_TILE(kind, 1, gw::half_lanes) \
  GW_GEMM_TILE(kind, 1, gw::vf::lanes)  \
  GW_GEMM_TILE(kind, 2, gw::vf::lanes)
#else  // vectors have no halves
#define GW_GEMM_TILES(kind)            \
  GW_GEMM_TILE(kind, 1, gw::vf::lanes) \
  GW_GEMM_TILE(kind, 2, gw::vf::lanes)
#endif
