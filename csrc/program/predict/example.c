/* Classes of the nodes of a small ring by random features: example WEIGHTS.safetensors */
#include <stdio.h>
#include <stdlib.h>

#include "graphweft_model.h"

enum { nodes = 8 };

int main(int argc, char** argv) {
  graphweft_error error = {"not enough memory"};
  graphweft_model* model = NULL;
  graphweft_graph* graph = NULL;
  graphweft_context* context = NULL;
  const int64_t width = graphweft_num_features(), classes = graphweft_num_classes();
  const int64_t some[2] = {3, 5}, fanouts[2] = {10, 10};
  int64_t indptr[nodes + 1];
  int32_t indices[nodes];
  float* features = (float*)malloc(sizeof(float) * (size_t)(nodes * width));
  float* scores = (float*)malloc(sizeof(float) * (size_t)(nodes * classes));
  int status = 1;
  for (int i = 0; i <= nodes; ++i) indptr[i] = i;
  for (int i = 0; i < nodes; ++i) indices[i] = (i + 1) % nodes;
  for (int64_t i = 0; features && i < nodes * width; ++i) features[i] = (float)rand() / (float)RAND_MAX;
  if (argc == 2 && features && scores && !graphweft_model_load(argv[1], &model, &error) &&
      !graphweft_graph_new(nodes, indptr, indices, &graph, &error) &&
      !graphweft_context_new(model, graph, 1, &context, &error) &&
      !graphweft_predict(context, features, scores, &error)) {
    for (int64_t i = 0; i < nodes * classes; ++i) printf("%g%c", scores[i], (i + 1) % classes ? ' ' : '\n');
    status = graphweft_predict_sampled(context, features, 2, some, 2, fanouts, 0, scores, &error);
    if (!status) printf("sampled: %g and %g\n", scores[0], scores[classes]);
  }
  if (status) fprintf(stderr, "%s\n", argc == 2 ? error.text : "usage: example WEIGHTS.safetensors");
  graphweft_context_free(context);
  graphweft_graph_free(graph);
  graphweft_model_free(model);
  free(features);
  free(scores);
  return status;
}
