// The two entry points of attention for one kind of score: declared where they are called, compiled in a file a kind.
// Products by head, which all kinds take, are compiled in the file of dot products.
#pragma once

#include "graphweft/attention_grad.h"

#define GW_ATTENTION(kind, score)                                                                                  \
  kind template void gw::attend<score>(const gw_adjacency&, const gw_attention_f32&, float*, float*);              \
  kind template void gw::attend_backward<score>(const gw_adjacency&, const gw_adjacency&, const gw_attention_f32&, \
                                                const float*, const float*, const float*,                          \
                                                const gw_attention_grad_f32&, float*);

#define GW_HEAD_PRODUCTS(kind)                                                                                \
  kind template void gw::dot_heads<false>(const gw::edge_block&, int64_t, int64_t, gw::id_list, const float*, \
                                          const float*, const float*, float, int64_t, float*);                \
  kind template void gw::row_products(int64_t, int64_t, const float*, const float*, float*);
