"""Libraries that predict: the library's bits on graphs of any size, from several threads, without new memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from built_program import FLAGS, Build
from safetensors.torch import load_file, save_file
from synth.served import Served

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.model_of_spec import make_model
from graphweft.runtime.build import find_compiler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.synth.spec import ProgramSpec
from graphweft.synthesis import write_program

Libraries = Callable[..., tuple[Served, Any, Path]]
CASES: list[dict[str, Any]] = [
    {"model": "gcn", "layers": 3, "hidden": 16},
    {"model": "sage", "reduce": "max", "hidden": 16},
    {"model": "gin", "residual": True, "layers": 3, "hidden": 16},
    {"model": "gat", "hidden": 16, "heads": 4, "activation": "relu"},
]


def _name(case: dict[str, Any]) -> str:
    return "-".join(str(value) for value in case.values())


@pytest.fixture(scope="session")
def libraries(build: Build, graphs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """A library for a case, the model that it was written for with drawn biases, and the file of its weights."""

    def make(**case: Any) -> tuple[Served, Any, Path]:
        folder = tmp_path_factory.mktemp("served")
        spec = ProgramSpec(data=str(graphs["dense"]), **case)
        made = write_program(spec, folder / "library", what="predict")
        ds = gw.load(str(graphs["dense"]))
        model: Any = make_model(spec.to_train(), ds)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        save_file(dict(model.state_dict()), folder / "weights.safetensors")
        return Served(build(made.folder, is_library=True).train), model.eval(), folder / "weights.safetensors"

    return make


def _random_graph(nodes: int, edges: int, seed: int) -> Graph:
    """With self-loops, parallel edges and nodes without any."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, nodes, edges), draw.integers(0, max(nodes - 3, 1), edges)
    return Graph(src, dst, num_nodes=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_predictions_are_the_librarys_on_any_graph(
    case: dict[str, Any], libraries: Libraries, graphs: dict[str, Path]
) -> None:
    served, model, weights = libraries(**case)
    handle = served.model(weights)
    own = gw.load(str(graphs["dense"]))
    assert isinstance(own.x, torch.Tensor)
    draw = torch.Generator().manual_seed(3)
    tried = [(own.graph, own.x)]
    for nodes, edges in ((1, 0), (7, 12), (2000, 30_000)):
        tried.append((_random_graph(nodes, edges, nodes), torch.randn(nodes, served.num_features, generator=draw)))
    for number, (graph, x) in enumerate(tried):
        with torch.no_grad():
            wanted = model(graph, x).numpy()
            exact = model.double()(graph, x.double()).numpy()
            model.float()
        for threads in (1, 2):
            context = served.context(handle, served.graph(graph), threads)
            found = served.predict(context, x.numpy())
            if number == 0:  # of the size that the orders of products were chosen for
                assert np.array_equal(found, wanted)
            scale = max(float(np.abs(exact).max()), 1.0)
            assert np.abs(found - exact).max() <= 1e-5 * scale
            served.free("context", context)
    served.free("model", handle)


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=_name)
def test_sampled_neighbourhoods_are_those_of_the_sampler(case: dict[str, Any], libraries: Libraries) -> None:
    served, model, weights = libraries(**case)
    graph = _random_graph(1500, 20_000, 5)
    x = torch.randn(1500, served.num_features, generator=torch.Generator().manual_seed(4))
    context = served.context(served.model(weights), served.graph(graph))
    nodes = [17, 3, 1499, 800]
    for fanouts in ([5, 3], [10], [-1, 4, 2]):
        sample = NeighborSampler(graph, fanouts).sample(nodes, seed=9)
        drawn = Graph(*sample.edge_index, num_nodes=sample.num_nodes)
        with torch.no_grad():
            wanted = model(drawn, x[sample.n_id])[:4].numpy()
        found = served.sampled(context, x.numpy(), nodes, fanouts, 9)
        assert np.abs(found - wanted).max() <= 2e-6 * max(np.abs(wanted).max(), 1.0)
        assert np.array_equal(found, served.sampled(context, x.numpy(), nodes, fanouts, 9))
    # all neighbours, one hop more than layers, as degrees count: the rows of the whole graph
    every = served.sampled(context, x.numpy(), nodes, [-1] * (case.get("layers", 2) + 1), 0)
    whole = served.predict(context, x.numpy())[nodes]
    assert np.abs(every - whole).max() <= 1e-5 * max(np.abs(whole).max(), 1.0)


@pytest.mark.slow
def test_threads_share_a_model_and_a_graph(libraries: Libraries) -> None:
    served, _, weights = libraries(model="gcn", layers=3, hidden=16)
    graph = _random_graph(900, 9000, 2)
    x = np.random.default_rng(0).standard_normal((900, served.num_features)).astype(np.float32)
    handle, over = served.model(weights), served.graph(graph)
    first = served.context(handle, over)
    whole, some = served.predict(first, x), served.sampled(first, x, [5, 600], [4, 4], 1)
    failures: list[str] = []

    def work(number: int) -> None:
        context = served.context(handle, over, 1 + number % 2) if number < 3 else first  # two share one
        for _ in range(20):
            if not np.array_equal(served.predict(context, x), whole):
                failures.append(f"whole {number}")
            if not np.array_equal(served.sampled(context, x, [5, 600], [4, 4], 1), some):
                failures.append(f"sampled {number}")
        if number < 3:
            served.free("context", context)

    team = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    assert failures == []


_COUNT = """
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "graphweft_model.h"
int main(int, char** argv) {
  const int64_t nodes = 3000, width = graphweft_num_features(), classes = graphweft_num_classes();
  std::vector<int64_t> indptr(nodes + 1), some{1, 7, 2000}, fanouts{10, 10};
  std::vector<int32_t> indices(4 * nodes);
  for (int64_t i = 0; i <= nodes; ++i) indptr[i] = 4 * i;
  for (int64_t i = 0; i < 4 * nodes; ++i) indices[i] = int32_t((i * 7919) % nodes);
  std::vector<float> x(nodes * width, 0.5f), scores(nodes * classes);
  graphweft_error error;
  graphweft_model* model;
  graphweft_graph* graph;
  graphweft_context* contexts[2];
  if (graphweft_model_load(argv[1], &model, &error)) return 2;
  if (graphweft_graph_new(nodes, indptr.data(), indices.data(), &graph, &error)) return 2;
  for (auto& context : contexts)
    if (graphweft_context_new(model, graph, 2, &context, &error)) return 2;
  for (int turn = std::atoi(argv[2]); turn > 0; --turn)
    for (auto& context : contexts) {
      if (graphweft_predict(context, x.data(), scores.data(), &error)) return 2;
      if (graphweft_predict_sampled(context, x.data(), 3, some.data(), 2, fanouts.data(), 1, scores.data(), &error))
        return 2;
    }
  return 0;
}
"""


@pytest.mark.slow
def test_later_calls_ask_for_no_memory(libraries: Libraries, tmp_path: Path) -> None:
    _, _, weights = libraries(model="gat", hidden=16, heads=4, activation="relu")
    folder = weights.parent / "library"
    compiler = find_compiler()
    assert compiler is not None
    (tmp_path / "count.cpp").write_text(_COUNT)
    counter = Path(__file__).with_name("count_malloc.cpp")
    command = [*compiler.command, *FLAGS, f"-I{folder}", str(tmp_path / "count.cpp"), str(counter)]
    subprocess.run([*command, str(folder / "libmodel.so"), "-o", str(tmp_path / "count")], check=True)
    blocks = []
    for turns in ("1", "2", "9"):
        run = [str(tmp_path / "count"), str(weights), turns]
        blocks.append(subprocess.run(run, capture_output=True, text=True, check=True).stderr)
    assert blocks[0].startswith("blocks ") and blocks[0] == blocks[1] == blocks[2]


@pytest.mark.slow
def test_what_is_wrong_is_said(libraries: Libraries, tmp_path: Path) -> None:
    served, _, weights = libraries(model="gcn", layers=3, hidden=16)
    (tmp_path / "text").write_text("no weights")
    tensors = load_file(weights)
    save_file({**tensors, "layers.0.weight": torch.zeros(3, 3)}, tmp_path / "wider")
    save_file({name: t for name, t in tensors.items() if name != "layers.0.bias"}, tmp_path / "fewer")
    handle, graph = served.model(weights), served.graph(_random_graph(9, 20, 0))
    x = np.zeros((9, served.num_features), np.float32)
    bad = np.array([0, 2, 1], np.int64)
    for call, said in (
        (lambda: served.model(tmp_path / "text"), r"^status 2: .*expected a safetensors file"),
        (lambda: served.model(tmp_path / "no"), r"^status 2: .*expected a safetensors file"),
        (lambda: served.model(tmp_path / "wider"), r"^status 3: layers.0.weight: expected F32 of shape"),
        (lambda: served.model(tmp_path / "fewer"), r"^status 3: .*expected a tensor layers.0.bias, got none"),
        (lambda: served.rows(bad, np.zeros(2, np.int32)), r"^status 1: .*expected indptr that ascends"),
        (lambda: served.rows(np.array([0, 1]), np.array([5], np.int32)), "expected indices of nodes"),
        (lambda: served.context(handle, graph, 0), "expected threads from 1"),
        (lambda: served.sampled(served.context(handle, graph), x, [99], [2], 0), "99"),
        (lambda: served.sampled(served.context(handle, graph), x, [1, 1], [2], 0), "1"),
    ):
        with pytest.raises(RuntimeError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^what=predict cannot be combined with target=mpi"):
        write_program(ProgramSpec(scale=0.02), tmp_path / "p", target="mpi", what="predict")


@pytest.mark.slow
def test_the_example_runs(libraries: Libraries, objects: Path) -> None:
    """The folder builds itself, and the example of the README prints scores of its ring."""
    served, _, weights = libraries(model="gcn", layers=3, hidden=16)
    folder = weights.parent / "library"
    compiler = find_compiler()
    assert compiler is not None
    once = f"{sys.executable};{Path(__file__).with_name('compile_once.py')};{objects}"
    from_flags = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={once}", f"-DCMAKE_CXX_COMPILER={compiler.command[0]}"]
    from_flags += ["-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror"]
    from_flags += ["-DCMAKE_CXX_FLAGS_RELEASE=-O2"]
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build", *from_flags], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder / "build", "-j2"], check=True, capture_output=True)
    example = [str(folder / "build" / "example"), str(weights)]
    lines = subprocess.run(example, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 9 and lines[8].startswith("sampled: ")
    assert all(len(line.split()) == served.num_classes for line in lines[:8])
    assert len((folder / "example.c").read_text().splitlines()) <= 40
    for command in (["gcc", "-std=c99", "-pedantic"], ["g++", "-x", "c++"], ["clang", "-std=c99", "-pedantic"]):
        if shutil.which(command[0]) is not None:
            strict = [
                *command,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
                f"-I{folder}",
                str(folder / "example.c"),
            ]
            subprocess.run(strict, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [{}, {"model": "sage", "reduce": "mean"}, {"model": "gin", "norm": "batch"}], ids=_name
)
def test_weights_of_edges(case: dict[str, Any], build: Build, graphs: dict[str, Path], tmp_path: Path) -> None:
    """With self-loops, parallel edges and nodes without edges; a whole neighbourhood is the graph."""
    spec = ProgramSpec(**{"data": str(graphs["weighted"]), "hidden": 16, **case})
    ds, made = gw.load(spec.data), write_program(spec, tmp_path / "library", what="predict")
    model: Any = make_model(spec.to_train(), ds).eval()
    save_file(dict(model.state_dict()), tmp_path / "weights.safetensors")
    served = Served(build(made.folder, is_library=True).train)
    assert ds.edge_weight is not None and isinstance(ds.x, torch.Tensor)
    graph, weight, x = served.graph(ds.graph, ds.edge_weight.numpy()), ds.edge_weight, ds.x.numpy()
    handle = served.model(tmp_path / "weights.safetensors")
    with torch.no_grad():
        wanted = model(ds.graph, ds.x, edge_weight=weight).numpy()
        with gw.config(opt_level=0):
            exact = model.double()(ds.graph, ds.x.double(), edge_weight=weight.double()).numpy()
    context = served.context(handle, graph, 2)
    found = served.predict(context, x)
    assert np.array_equal(found, wanted)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)
    some = [3, 0, 45, 200]
    np.testing.assert_allclose(served.sampled(context, x, some, [-1] * 3, 0), exact[some], rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match=r"^status 1: .*expected a graph with weights, which the model reads"):
        served.context(handle, served.graph(ds.graph))
    with pytest.raises(RuntimeError, match=r"^status 1: .*expected finite weights"):
        served.graph(ds.graph, np.full(weight.shape, np.inf, np.float32))
