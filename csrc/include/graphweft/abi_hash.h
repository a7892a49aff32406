// A mark of all entry points and structures. Written by csrc/bindings.py.
#pragma once

#define GW_ABI_HASH "3913ca6a2f8ab38e"
