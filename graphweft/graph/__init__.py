"""What a graph is: compressed adjacency, the immutable Graph over it, typed layouts, graph algebra."""
