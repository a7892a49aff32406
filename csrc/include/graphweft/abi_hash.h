// A mark of all entry points and structures. Written by csrc/bindings.py.
#pragma once

#define GW_ABI_HASH "9ff3e5de191b1d06"
