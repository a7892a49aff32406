// A mark of all entry points and structures. Written by csrc/bindings.py.
#pragma once

#define GW_ABI_HASH "f27681a6ce734954"
