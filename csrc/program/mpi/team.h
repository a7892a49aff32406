// The processes that train together, over MPI: who speaks for all, and sums that travel while others are computed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels.h"
#include "mpi_c.h"

namespace program {

// Starts MPI and ends it. All of MPI is called by the main thread.
class Team {
 public:
  static constexpr bool tests_itself = false;
  Team(int* argc, char*** argv);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  [[nodiscard]] bool is_first() const { return rank() == 0; }
  // Adds up so many numbers over all processes.
  void sum(double* numbers, int64_t count) const;
  void abort() const;
  static int self_test() { return 0; }

  static int rank();
  static int size();
};

// Lines of what overlapped, of the first rank, to the file that PROGRAM_TRACE names; nothing without.
class Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  [[nodiscard]] bool is_on() const { return file_ != nullptr; }
  // Something was begun, waited for from a moment on, and was there; all in seconds.
  void add(const std::string& what, double begun, double waited_from, double done) const;

  static double now();

 private:
  std::FILE* file_ = nullptr;
};

// Sums over all ranks that are under way. A gradient is added up in place: it is begun as soon as it is known, before
// the gradients by the inputs of its layer are computed, and waited for before the update.
class Sums {
 public:
  Sums();

  void start(const char* name, const Matrix& values);
  void start(Loss& loss);
  // All that were begun; in the order in which they were.
  void finish();

 private:
  struct Entry {
    std::string name;
    MPI_Request request;
    double begun;
  };
  std::vector<Entry> open_;
  double totals_[2] = {};  // sum and rows of the loss
  Loss* loss_ = nullptr;
  const Trace trace_;
  const double delay_;  // seconds that a sum takes at least: PROGRAM_SUM_DELAY_MS, a slow network for tests
};

}  // namespace program
