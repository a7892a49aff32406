"""What a graph is: compressed adjacency, the immutable Graph over it, typed layouts, graph algebra."""

import graphweft.graph.placed  # noqa: F401 graphs learn there how they are sent to devices
