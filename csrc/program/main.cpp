// Trains the model of model.cpp on an .npz file: no Python, no torch.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "dataset.h"
#include "graphweft/parallel.h"
#include "memory.h"
#include "model.h"
#include "report.h"
#include "scores.h"
#include "team.h"
#include "weights.h"

namespace {

using program::facts;
using program::Json;

constexpr const char* usage =
    "usage: train --data FILE.npz [--epochs N] [--seed N] [--threads N] [--eval-every N]\n"
    "             [--load FILE.safetensors] [--save FILE.safetensors] [--metrics FILE.jsonl] [--json]\n";

struct Options {
  std::string data = facts.data, load, save, metrics;
  int64_t epochs = facts.epochs, seed = facts.seed, threads = 0, eval_every = facts.eval_every;
  bool json = false;
};

int64_t whole(const char* flag, const char* text, int64_t least, int64_t most) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text, &end, 10);
  if (*text == 0 || *end != 0 || errno != 0 || value < least || value > most)
    throw std::runtime_error(std::string(flag) + ": expected an integer from " + std::to_string(least) + " to " +
                             std::to_string(most) + ", got " + text);
  return value;
}

Options parse(int argc, char** argv) {
  Options found;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      found.json = true;
      continue;
    }
    if (flag == "--help" || flag == "-h") {
      std::fputs(usage, stdout);
      std::exit(0);
    }
    if (i + 1 == argc) throw std::runtime_error(flag + ": expected a known flag and its value; --help lists them");
    const char* value = argv[++i];
    if (flag == "--data")
      found.data = value;
    else if (flag == "--load")
      found.load = value;
    else if (flag == "--save")
      found.save = value;
    else if (flag == "--metrics")
      found.metrics = value;
    else if (flag == "--epochs")
      found.epochs = whole("--epochs", value, 1, 1'000'000'000);
    else if (flag == "--seed")
      found.seed = whole("--seed", value, 0, INT64_MAX);
    else if (flag == "--threads")
      found.threads = whole("--threads", value, 1, 4096);
    else if (flag == "--eval-every")
      found.eval_every = whole("--eval-every", value, 1, 1'000'000'000);
    else
      throw std::runtime_error(flag + ": expected a known flag; --help lists them");
  }
  if (found.data.empty()) throw std::runtime_error("--data: expected an .npz file, got none");
  return found;
}

// One epoch as metrics.jsonl has it.
struct Record {
  int64_t epoch = 0;
  double loss = NAN, epoch_seconds = 0, eval_seconds = 0;
  program::Evaluation found = {};

  [[nodiscard]] std::string text() const {
    Json line;
    line.add("epoch", epoch).add("loss", loss);
    line.add("train_acc", found.train.accuracy).add("val_acc", found.val.accuracy);
    line.add("test_acc", found.test.accuracy).add("val_loss", found.val.loss);
    line.add("epoch_seconds", epoch_seconds).add("eval_seconds", eval_seconds);
    program::add_measured(line, found);
    return line.text();
  }
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Of numbers that are put in order.
double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void evaluate(program::Model& model, const program::Dataset& data, const program::Team& team, Record& record) {
  const double start = now();
  const program::Matrix logits = model.evaluate();
  record.found.train = program::score(logits, data, data.split.train, team);
  record.found.val = program::score(logits, data, data.split.val, team);
  record.found.test = program::score(logits, data, data.split.test, team);
  record.eval_seconds = now() - start;
}

class Log {
 public:
  explicit Log(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "w");
    if (!file_) throw std::runtime_error(path + ": cannot be written");
  }
  ~Log() {
    if (file_) std::fclose(file_);
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  void write(const Record& record) {
    if (file_ && (std::fprintf(file_, "%s\n", record.text().c_str()) < 0 || std::fflush(file_) != 0))
      throw std::runtime_error(path_ + ": cannot be written");
  }

 private:
  const std::string path_;
  std::FILE* file_ = nullptr;
};

// What grows with the number of epochs; all of its room is taken before the first of them.
struct History {
  std::vector<Record> records;
  std::vector<double> steps, evaluations;  // seconds, for medians

  explicit History(size_t epochs) {
    records.reserve(epochs);
    steps.reserve(epochs);
    evaluations.reserve(epochs);
  }
};

History train(const Options& options, program::Model& model, const program::Dataset& data, const program::Team& team,
              int64_t done) {
  History history(size_t(std::max<int64_t>(options.epochs - done, 0)));
  Log log(team.is_first() ? options.metrics : std::string());
  program::keep_freed_memory(gw::num_threads());
  for (int64_t epoch = done + 1; epoch <= options.epochs; ++epoch) {
    Record record;
    record.epoch = epoch;
    const double start = now();
    record.loss = double(model.step(uint64_t(options.seed), uint64_t(epoch)));
    record.epoch_seconds = now() - start;
    if (!std::isfinite(record.loss))
      throw std::runtime_error("epoch " + std::to_string(epoch) + ": the loss is not finite; train with a smaller lr");
    if (epoch % options.eval_every == 0 || epoch == options.epochs) evaluate(model, data, team, record);
    log.write(record);
    history.records.push_back(record);
  }
  return history;
}

Json summary(const Options& options, const program::Dataset& data, History& history, double prepare_seconds,
             double total_seconds) {
  const std::vector<Record>& records = history.records;
  const Record* best = nullptr;
  for (const Record& record : records) {
    // the first step counts only where there is no other
    if (records.size() == 1 || &record != &records.front()) history.steps.push_back(record.epoch_seconds);
    if (record.eval_seconds > 0) history.evaluations.push_back(record.eval_seconds);
    const double rank = record.found.val.rank();
    if (!std::isnan(rank) && (!best || rank > best->found.val.rank())) best = &record;
  }
  const Record last = records.empty() ? Record() : records.back();
  Json json;
  json.add("dataset", options.data).add("model", facts.name).add("mode", "full");
  json.add("num_nodes", facts.expected.nodes).add("num_edges", data.graph.num_edges());
  json.add("num_features", facts.expected.features).add("num_classes", facts.expected.classes);
  json.add("num_parameters", facts.num_parameters).add("layers", facts.layers).add("hidden", facts.hidden);
  json.add("epochs", records.empty() ? int64_t{0} : last.epoch);
  json.add("first_epoch_seconds", records.empty() ? 0.0 : records.front().epoch_seconds);
  json.add("epoch_seconds_median", median(history.steps)).add("eval_seconds_median", median(history.evaluations));
  json.add("peak_rss_mb", std::round(program::peak_rss_mb() * 10) / 10);
  const program::Evaluation chosen = best ? best->found : program::Evaluation();
  json.add("feature_path", facts.feature_path).add("metric", program::metric_of(data.task)).add("loss", last.loss);
  json.add("train_acc", last.found.train.accuracy).add("val_acc", last.found.val.accuracy);
  json.add("test_acc", last.found.test.accuracy);
  best ? json.add("best_epoch", best->epoch) : json.add("best_epoch", NAN);
  json.add("best_val_acc", chosen.val.accuracy).add("test_acc_at_best_val", chosen.test.accuracy);
  program::add_best_measured(json, last.found, chosen);
  json.add("seed", options.seed).add("threads", int64_t(gw::num_threads()));
  return json.add("prepare_seconds", prepare_seconds).add("total_seconds", total_seconds);
}

void run(const Options& options, const program::Team& team) {
  const double start = now();
  if (options.threads) gw::set_num_threads(int(options.threads));
  program::Dataset data(options.data, facts.expected);
  program::Model model(data, uint64_t(options.seed));
  const int64_t done =
      options.load.empty() ? 0 : program::load_weights(options.load, model.weights(), model.optimizer_state());
  const double prepared = now();
  History history = train(options, model, data, team, done);
  if (!options.save.empty() && team.is_first()) {
    std::vector<program::Tensor> all = model.weights();
    for (const program::Tensor& tensor : model.optimizer_state()) all.push_back(tensor);
    program::save_weights(options.save, all, std::max(done, options.epochs));
  }
  if (!team.is_first()) return;
  const Json json = summary(options, data, history, prepared - start, now() - start);
  if (options.json) {
    std::printf("%s\n", json.text().c_str());
  } else {
    for (const Record& record : history.records) std::printf("%s\n", record.text().c_str());
  }
  if (std::fflush(stdout) != 0) throw std::runtime_error("standard output: cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  const program::Team team(&argc, &argv);
  const auto failed = [&](int status, const char* what) {
    std::fprintf(stderr, "train: %s\n", what);
    team.abort();
    return status;
  };
  try {
    if (program::Team::tests_itself && argc == 2 && std::strcmp(argv[1], "--self-test") == 0)
      return program::Team::self_test() ? 1 : 0;
    run(parse(argc, argv), team);
    return 0;
  } catch (const std::bad_alloc&) {
    return failed(1, "not enough memory");
  } catch (const std::exception& failure) {
    return failed(2, failure.what());
  }
}
