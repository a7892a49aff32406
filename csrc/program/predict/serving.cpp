// The entry points of graphweft_model.h.
#include "serving.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "graphweft/parallel.h"
#include "graphweft_model.h"
#include "memory.h"
#include "neighborhood.h"
#include "weights.h"

namespace program {

namespace {
constexpr int64_t line = 16;  // floats
}

Room::Room(int64_t nodes)
    : rows_((nodes + line - 1) / line * line),
      start_(static_cast<float*>(::operator new(sizeof(float) * size_t(std::max<int64_t>(rows_ * serving.columns, 1)),
                                                std::align_val_t(64)))) {}

void Room::freed::operator()(float* start) const { ::operator delete(start, std::align_val_t(64)); }

}  // namespace program

struct graphweft_model {
  std::vector<float> weights;
};

struct graphweft_graph {
  program::Form in_edges;
  std::vector<float> weights;  // by place among the in-edges; empty: none
};

struct graphweft_context {
  const graphweft_model* model;
  const graphweft_graph* graph;
  const int threads;
  program::Neighborhood neighborhood;
  std::unique_ptr<program::Pass> whole;  // made when it is first asked for
  std::mutex busy;                       // one call at a time

  graphweft_context(const graphweft_model* of, const graphweft_graph* over, int width)
      : model(of),
        graph(over),
        threads(width),
        neighborhood(over->in_edges, over->weights.empty() ? nullptr : over->weights.data()) {
    program::keep_more(threads);
  }
  ~graphweft_context() { program::keep_more(-threads); }
};

namespace {

// The threads of a call; the caller's own number is put back.
class Width {
 public:
  explicit Width(int threads) : before_(gw::num_threads()) { gw::set_num_threads(threads); }
  ~Width() { gw::set_num_threads(before_); }
  Width(const Width&) = delete;
  Width& operator=(const Width&) = delete;

 private:
  const int before_;
};

int failed(graphweft_error* error, int status, const char* what) {
  if (error) std::snprintf(error->text, sizeof error->text, "%s", what);
  return status;
}

// `other`: the status of failures that are of no kind of their own.
template <class Body>
int guarded(graphweft_error* error, Body&& body, int other = GRAPHWEFT_BAD_ARGUMENT) {
  try {
    body();
    return GRAPHWEFT_OK;
  } catch (const std::bad_alloc&) {
    return failed(error, GRAPHWEFT_NO_MEMORY, "not enough memory");
  } catch (const program::OtherTensors& failure) {
    return failed(error, GRAPHWEFT_BAD_WEIGHTS, failure.what());
  } catch (const std::invalid_argument& failure) {
    return failed(error, GRAPHWEFT_BAD_ARGUMENT, failure.what());
  } catch (const std::exception& failure) {
    return failed(error, other, failure.what());
  }
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

extern "C" {

int64_t graphweft_num_features(void) { return program::serving.features; }
int64_t graphweft_num_classes(void) { return program::serving.classes; }

int graphweft_model_load(const char* path, graphweft_model** out, graphweft_error* error) {
  const auto load = [&] {
    require(path && out, "graphweft_model_load: expected a path and a place for the model, got null");
    auto made = std::make_unique<graphweft_model>();
    made->weights.resize(size_t(program::serving.weights));
    std::vector<program::Tensor> tensors;
    for (const program::Place& place : program::places())
      tensors.push_back(
          {place.name, place.shape, place.at < 0 ? nullptr : made->weights.data() + place.at, place.at < 0});
    program::load_weights(path, tensors, {});
    *out = made.release();
  };
  return guarded(error, load, GRAPHWEFT_BAD_FILE);
}

void graphweft_model_free(graphweft_model* model) { delete model; }

int graphweft_graph_new(int64_t num_nodes, const int64_t* indptr, const int32_t* indices, graphweft_graph** out,
                        graphweft_error* error) {
  return graphweft_weighted_graph_new(num_nodes, indptr, indices, nullptr, out, error);
}

int graphweft_weighted_graph_new(int64_t num_nodes, const int64_t* indptr, const int32_t* indices, const float* weights,
                                 graphweft_graph** out, graphweft_error* error) {
  return guarded(error, [&] {
    require(indptr && out && num_nodes >= 0, "graphweft_graph_new: expected arrays of a graph, got null");
    require(num_nodes < INT32_MAX, "graphweft_graph_new: expected fewer than 2**31 - 1 nodes");
    const int64_t edges = indptr[num_nodes];
    require(indptr[0] == 0 && edges >= 0 && (indices || edges == 0),
            "graphweft_graph_new: expected indptr from 0 to the number of edges");
    auto made = std::make_shared<program::Compressed>();
    made->num_cols = num_nodes;
    made->indptr.assign(indptr, indptr + num_nodes + 1);
    for (int64_t i = 0; i < num_nodes; ++i)
      require(indptr[i] <= indptr[i + 1] && indptr[i + 1] <= edges,
              "graphweft_graph_new: expected indptr that ascends");
    made->indices.assign(indices, indices + edges);
    for (const int32_t id : made->indices)
      require(id >= 0 && id < num_nodes, "graphweft_graph_new: expected indices of nodes");
    std::vector<float> numbers(weights, weights ? weights + edges : weights);
    for (const float weight : numbers)
      require(std::isfinite(weight), "graphweft_weighted_graph_new: expected finite weights");
    if (weights && edges == 0) numbers.push_back(0.0f);  // there are weights, of no edge
    *out = new graphweft_graph{std::move(made), std::move(numbers)};
  });
}

void graphweft_graph_free(graphweft_graph* graph) { delete graph; }

int graphweft_context_new(const graphweft_model* model, const graphweft_graph* graph, int32_t threads,
                          graphweft_context** out, graphweft_error* error) {
  return guarded(error, [&] {
    require(model && graph && out, "graphweft_context_new: expected a model and a graph, got null");
    require(threads >= 1 && threads <= 1024, "graphweft_context_new: expected threads from 1 to 1024");
    require(graph->weights.empty() != program::serving.reads_edge_weights,
            program::serving.reads_edge_weights
                ? "graphweft_context_new: expected a graph with weights, which the model reads; make it by "
                  "graphweft_weighted_graph_new"
                : "graphweft_context_new: expected a graph without weights, which the model does not read");
    *out = new graphweft_context(model, graph, threads);
  });
}

void graphweft_context_free(graphweft_context* context) { delete context; }

int graphweft_predict(graphweft_context* context, const float* features, float* scores, graphweft_error* error) {
  return guarded(error, [&] {
    require(context && features && scores, "graphweft_predict: expected a context, features and scores, got null");
    const std::lock_guard<std::mutex> alone(context->busy);
    const Width width(context->threads);
    const program::Form& form = context->graph->in_edges;
    if (!context->whole)
      context->whole =
          std::make_unique<program::Pass>(context->model->weights.data(), program::Graph::from_in_edges(form),
                                          form->num_rows(), context->graph->weights.data());
    const program::Matrix made = context->whole->run(features);
    std::copy_n(made.at, made.rows * made.cols, scores);
  });
}

int graphweft_predict_sampled(graphweft_context* context, const float* features, int64_t count, const int64_t* nodes,
                              int64_t hops, const int64_t* fanouts, uint64_t seed, float* scores,
                              graphweft_error* error) {
  return guarded(error, [&] {
    require(context && features && scores && (nodes || count == 0) && fanouts,
            "graphweft_predict_sampled: expected a context and arrays, got null");
    require(count >= 0 && hops >= 1, "graphweft_predict_sampled: expected nodes and at least one hop");
    const std::lock_guard<std::mutex> alone(context->busy);
    const Width width(context->threads);
    program::Neighborhood& drawn = context->neighborhood;
    drawn.draw(count, nodes, hops, fanouts, seed);
    const float* x = drawn.rows_of(features, program::serving.features);
    program::Pass pass(context->model->weights.data(), program::Graph::from_in_edges(drawn.in_edges()), drawn.nodes(),
                       drawn.edge_weights());
    std::copy_n(pass.run(x).at, count * program::serving.classes, scores);
  });
}
}
