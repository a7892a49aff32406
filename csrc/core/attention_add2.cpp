// Attention by scores of a vector against a unit.
#include "attention_scores.h"

GW_HEAD_PRODUCTS(extern)
GW_ATTENTION(, gw_score_add2)
