"""The kinds of features that are made where a source has none. Read by the command line, so nothing heavy is imported.

Comes in: nothing. Goes out: names, and what each is.
"""

from __future__ import annotations

FEATURE_KINDS = {
    "degree": "logarithms of the degrees",
    "degree_onehot": "a column for every in-degree",
    "onehot": "a column of its own for every node",
    "random": "normal random numbers",
    "laplacian": "eigenvectors of the normalised Laplacian",
    "embedding": "a learned row for every node",
}
STRUCTURAL = ("degree", "degree_onehot", "laplacian")  # these read the edges, so held-out edges must not be among them
USUAL_WIDTH = {"random": 32, "laplacian": 16}
