// The processes that train together: here the one that there is. The MPI program has another file of this name.
#pragma once

#include "kernels.h"

namespace program {

class Team {
 public:
  static constexpr bool tests_itself = false;
  Team(int*, char***) {}

  // Whether this process speaks for all.
  [[nodiscard]] bool is_first() const { return true; }
  // Adds up so many numbers over all processes.
  void sum(double*, int64_t) const {}
  static int size() { return 1; }
  // Ends all processes after a failure.
  void abort() const {}
  static int self_test() { return 0; }
};

}  // namespace program
