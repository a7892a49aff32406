#include "team.h"

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace program {

Team::Team(int* argc, char*** argv) {
  int level = 0;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS || level < MPI_THREAD_FUNNELED)
    throw std::runtime_error("MPI: expected a library that allows threads, got one that does not");
}

Team::~Team() { MPI_Finalize(); }

int Team::rank() {
  int found = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &found);
  return found;
}

int Team::size() {
  int found = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &found);
  return found;
}

void Team::sum(double* numbers, int64_t count) const {
  MPI_Allreduce(MPI_IN_PLACE, numbers, int(count), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

void Team::abort() const {
  if (size() > 1) MPI_Abort(MPI_COMM_WORLD, 2);
}

Trace::Trace() {
  const char* path = std::getenv("PROGRAM_TRACE");
  if (path && Team::rank() == 0) file_ = std::fopen(path, "a");
}

Trace::~Trace() {
  if (file_) std::fclose(file_);
}

double Trace::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Trace::add(const std::string& what, double begun, double waited_from, double done) const {
  if (file_)
    std::fprintf(file_, "{\"what\": \"%s\", \"begun\": %.6f, \"waited_from\": %.6f, \"done\": %.6f}\n", what.c_str(),
                 begun, waited_from, done);
}

namespace {

double delay_of_environment() {
  const char* text = std::getenv("PROGRAM_SUM_DELAY_MS");
  return text ? 1e-3 * std::atof(text) : 0.0;
}

}  // namespace

Sums::Sums() : delay_(delay_of_environment()) { open_.reserve(256); }

void Sums::start(const char* name, const Matrix& values) {
  Entry entry{name, MPI_REQUEST_NULL, Trace::now()};
  MPI_Iallreduce(MPI_IN_PLACE, values.at, int(values.rows * values.cols), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                 &entry.request);
  open_.push_back(entry);
}

void Sums::start(Loss& loss) {
  loss_ = &loss;
  totals_[0] = loss.sum;
  totals_[1] = double(loss.rows);
  Entry entry{"loss", MPI_REQUEST_NULL, Trace::now()};
  MPI_Iallreduce(MPI_IN_PLACE, totals_, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &entry.request);
  open_.push_back(entry);
}

void Sums::finish() {
  for (Entry& entry : open_) {
    const double from = Trace::now(), rest = entry.begun + delay_ - from;
    MPI_Wait(&entry.request, MPI_STATUS_IGNORE);
    if (delay_ > 0 && rest > 0) std::this_thread::sleep_for(std::chrono::duration<double>(rest));
    trace_.add("sum of " + entry.name, entry.begun, from, Trace::now());
  }
  open_.clear();
  if (loss_) {
    loss_->sum = totals_[0];
    loss_->rows = int64_t(totals_[1]);
  }
  loss_ = nullptr;
}

}  // namespace program
