// Attention by dot products.
#include "attention_scores.h"

GW_HEAD_PRODUCTS()
GW_ATTENTION(, gw_score_dot)
