/* A trained model as a library: load weights, predict classes of nodes.
 *
 * Functions return GRAPHWEFT_OK, or another status after writing one line into `error`, which may be null. Nothing is
 * shared between calls but what is passed: a model and a graph are read by any number of threads; a context serves one
 * call at a time, and others wait, so threads that shall not wait have one each. After the first calls of a context,
 * calls that are no larger ask the C library for no memory. */
#ifndef GRAPHWEFT_MODEL_H
#define GRAPHWEFT_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRAPHWEFT_API __attribute__((visibility("default")))

/* What functions return. */
enum {
  GRAPHWEFT_OK = 0,
  GRAPHWEFT_BAD_ARGUMENT = 1, /* a null, a size, a node or an edge out of range */
  GRAPHWEFT_BAD_FILE = 2,     /* weights that cannot be read, or are no whole safetensors file */
  GRAPHWEFT_BAD_WEIGHTS = 3,  /* weights of another model: names, shapes or types differ */
  GRAPHWEFT_NO_MEMORY = 4
};

typedef struct graphweft_model graphweft_model;     /* weights */
typedef struct graphweft_graph graphweft_graph;     /* nodes and edges */
typedef struct graphweft_context graphweft_context; /* working memory over one model and one graph */
typedef struct graphweft_error {
  char text[256];
} graphweft_error;

/* Columns of the features that a model reads, and of the scores that it gives: one a class. */
GRAPHWEFT_API int64_t graphweft_num_features(void);
GRAPHWEFT_API int64_t graphweft_num_classes(void);

/* Weights from a safetensors file, as `train --save` and Python's safetensors write it. */
GRAPHWEFT_API int graphweft_model_load(const char* path, graphweft_model** out, graphweft_error* error);
GRAPHWEFT_API void graphweft_model_free(graphweft_model* model);

/* A copy of a graph: node i receives from indices[indptr[i]] .. indices[indptr[i + 1] - 1]. indptr has num_nodes + 1
 * entries. */
GRAPHWEFT_API int graphweft_graph_new(int64_t num_nodes, const int64_t* indptr, const int32_t* indices,
                                      graphweft_graph** out, graphweft_error* error);
/* The same with a finite weight for each of indices[..], for models that read weights of edges; those read no other
 * graph. */
GRAPHWEFT_API int graphweft_weighted_graph_new(int64_t num_nodes, const int64_t* indptr, const int32_t* indices,
                                               const float* weights, graphweft_graph** out, graphweft_error* error);
GRAPHWEFT_API void graphweft_graph_free(graphweft_graph* graph);

/* A context whose calls run on so many threads. Model and graph must outlive it. */
GRAPHWEFT_API int graphweft_context_new(const graphweft_model* model, const graphweft_graph* graph, int32_t threads,
                                        graphweft_context** out, graphweft_error* error);
GRAPHWEFT_API void graphweft_context_free(graphweft_context* context);

/* Scores of all nodes: features [num_nodes, num_features] row by row in, scores [num_nodes, num_classes] out. */
GRAPHWEFT_API int graphweft_predict(graphweft_context* context, const float* features, float* scores,
                                    graphweft_error* error);

/* Scores of `count` distinct nodes from a sample of their neighbourhood. In hop h every node that is new draws at most
 * fanouts[h] of its in-edges, all with -1; the model runs on the nodes and edges that were drawn, by `features` of the
 * whole graph. Equal seeds give equal draws. scores: [count, num_classes]. */
GRAPHWEFT_API int graphweft_predict_sampled(graphweft_context* context, const float* features, int64_t count,
                                            const int64_t* nodes, int64_t hops, const int64_t* fanouts, uint64_t seed,
                                            float* scores, graphweft_error* error);

#ifdef __cplusplus
}
#endif
#endif
