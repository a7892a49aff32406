// A mark of all entry points and structures. Written by csrc/bindings.py.
#pragma once

#define GW_ABI_HASH "d08b7f675f289774"
