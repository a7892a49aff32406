// A mark of all entry points and structures. Written by csrc/bindings.py.
#pragma once

#define GW_ABI_HASH "b53662cb032122ea"
