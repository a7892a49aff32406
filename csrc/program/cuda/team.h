// The processes that train together: here the one that there is. It can test its kernels.
#pragma once

#include "kernels.h"

namespace program {

class Team {
 public:
  static constexpr bool tests_itself = true;
  Team(int*, char***) {}

  // Whether this process speaks for all.
  [[nodiscard]] bool is_first() const { return true; }
  // Adds up so many numbers over all processes.
  void sum(double*, int64_t) const {}
  static int size() { return 1; }
  // Ends all processes after a failure.
  void abort() const {}
  static int self_test() { return program::self_test(); }
};

}  // namespace program
