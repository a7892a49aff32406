"""Layers a relation, models made of them, and functions a relation, against PyTorch Geometric and brute force."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.errors import ConfigError, GraphError, ShapeError
from graphweft.nn import fn

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is the peer of this test")

SIZES = {"paper": 9, "author": 6, "field": 4}
WIDTHS = {"paper": 5, "author": 3, "field": 7}
RELATIONS = (
    ("author", "writes", "paper"),
    ("paper", "written by", "author"),
    ("paper", "cites", "paper"),
    ("field", "has", "paper"),
)


def _edges(seed: int = 0) -> dict[tuple[str, str, str], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ends = {r: [torch.randint(0, SIZES[end], (20,), generator=draw) for end in (r[0], r[2])] for r in RELATIONS}
    return {relation: torch.stack(pair) for relation, pair in ends.items()}


def _graph(edges: dict[tuple[str, str, str], Tensor]) -> gw.Graph:
    return gw.Graph.hetero({relation: (ends[0], ends[1]) for relation, ends in edges.items()}, SIZES)


def _features(seed: int = 1) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(SIZES[name], WIDTHS[name], generator=draw, dtype=torch.float64) for name in SIZES}


@pytest.mark.filterwarnings("ignore:There exist node types")  # of the peer: fields receive nothing
@pytest.mark.parametrize("aggr", ["sum", "mean", "min", "max", "cat", "stack"])
def test_a_layer_a_relation_is_pygs(aggr: str) -> None:
    edges = _edges()
    x = _features()
    sizes = {r: WIDTHS[r[0]] if r[0] == r[2] else (WIDTHS[r[0]], WIDTHS[r[2]]) for r in RELATIONS}
    peer = pyg.HeteroConv(
        {r: pyg.SAGEConv(sizes[r], 4) for r in RELATIONS}, aggr=None if aggr == "stack" else aggr
    ).double()
    mine = gw.nn.HeteroConv({r: gw.nn.SAGEConv(sizes[r], 4) for r in RELATIONS}, aggr=aggr).double()
    for relation in RELATIONS:
        layer, own = peer.convs[relation], mine.convs["__".join(relation)]
        given = {"neighbor_weight": layer.lin_l.weight.T, "bias": layer.lin_l.bias, "self_weight": layer.lin_r.weight.T}
        own.load_state_dict({name: tensor.detach().clone() for name, tensor in given.items()})
    ours, theirs = ({name: rows.clone().requires_grad_() for name, rows in x.items()} for _ in range(2))
    found, wanted = mine(_graph(edges), ours), peer(theirs, edges)
    assert found.keys() == wanted.keys() == {"paper", "author"}
    for name, rows in wanted.items():
        torch.testing.assert_close(found[name], rows, rtol=1e-9, atol=1e-9)
    sum(rows.square().sum() for rows in found.values()).backward()
    sum(rows.square().sum() for rows in wanted.values()).backward()
    for name in x:
        torch.testing.assert_close(ours[name].grad, theirs[name].grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [gw.nn.SAGE, gw.nn.GIN, gw.nn.GAT, gw.nn.Transformer])
def test_a_model_for_all_relations_is_its_layers(kind: Any) -> None:
    """Two layers with norm, residual and activation between them, by hand."""
    torch.manual_seed(2)
    options = {} if kind in (gw.nn.SAGE, gw.nn.GIN) else {"heads": 2}
    graph, x = _graph(_edges()), _features()
    if kind is gw.nn.GIN:  # which adds rows of both ends
        x = {name: rows[:, :3] for name, rows in x.items()}
    graph = gw.Graph.hetero(
        {r: graph.relation_graph(r).edges() for r in RELATIONS} | {("paper", "of", "field"): ([0, 3], [1, 2])}, SIZES
    )
    model = gw.nn.to_hetero(kind(-1, 8, 4, norm="layer", residual=True, **options), graph).double()
    found = model(graph, x)
    assert {name: rows.shape for name, rows in found.items()} == {name: (SIZES[name], 4) for name in SIZES}
    first, second = model.layers
    hidden = first(graph, x)
    between = nn.functional.elu if kind is gw.nn.GAT else nn.functional.relu
    hidden = {name: between(model.norms[0][name](rows)) for name, rows in hidden.items()}
    for name, rows in second(graph, hidden).items():
        torch.testing.assert_close(found[name], rows, rtol=1e-9, atol=1e-9)
    parameters = dict(model.named_parameters())
    assert len({p.data_ptr() for p in parameters.values()}) == len(parameters)
    flat = torch.cat([nn.functional.pad(x[name], (0, 0)) for name in SIZES]) if kind is gw.nn.GIN else None
    if flat is not None:
        torch.testing.assert_close(model(graph, flat), torch.cat([found[name] for name in SIZES]), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:to_hetero. nodes of type:graphweft.errors.DataWarning")
def test_it_trains_in_the_trainer() -> None:
    torch.manual_seed(0)
    graph = _graph(_edges())
    x = torch.randn(graph.num_nodes, 6)
    y = (x[:, 0] > 0).long()
    y[graph.layout.node_range("field").start :] = -1
    split = {"train_idx": torch.arange(11), "val_idx": torch.arange(11, 13), "test_idx": torch.arange(13, 15)}
    ds = gw.Dataset("typed", graph, x, y, **split)
    model = gw.nn.to_hetero(gw.nn.SAGE(-1, 16, 2), graph)
    with pytest.raises(ConfigError, match="call the model once"):
        gw.Trainer(model, ds)
    model(graph, x)
    history = gw.Trainer(model, ds, lr=0.05).fit(40)
    assert history["loss"][-1] < 0.2 * history["loss"][0]


def test_models_wait_for_the_width_of_their_features() -> None:
    ds = gw.synthetic("default", scale=0.02)
    torch.manual_seed(3)
    waiting = gw.nn.GCN(-1, 16, 3, dropout=0.5).double().eval()
    assert isinstance(waiting, gw.nn.GCN)
    assert "made at the first call" in repr(waiting)
    calls: list[int] = []
    hook = waiting.register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(4)
    out = waiting(ds.graph, ds.x.double())
    assert type(waiting) is gw.nn.GCN
    assert not waiting.training
    torch.manual_seed(4)
    given = gw.nn.GCN(ds.num_features, 16, 3, dropout=0.5).double().eval()
    torch.testing.assert_close(out, given(ds.graph, ds.x.double()), rtol=0, atol=0)
    waiting(ds.graph, ds.x.double())
    assert calls == [1, 1]
    hook.remove()
    again = pickle.loads(pickle.dumps(waiting))
    torch.testing.assert_close(again(ds.graph, ds.x.double()), out, rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(waiting)(ds.graph, ds.x.double()), out, rtol=0, atol=0)


def test_a_module_that_waits_says_so() -> None:
    waiting, graph, x = gw.nn.GCN(-1, 16, 3), gw.Graph([0, 1], [1, 0]), torch.ones(2, 4)
    with pytest.raises(ConfigError, match="expected parameters; call the module once first"):
        waiting.load_state_dict(gw.nn.GCN(4, 16, 3).state_dict())
    with pytest.raises(AttributeError, match="GCN has no 'layers' before its first call, as in_features is -1"):
        waiting.embed(graph, x)
    assert gw.explain(waiting, graph, x).startswith("GCN on 2 nodes")
    pair = gw.explain(gw.nn.SAGEConv((4, 3), 2), gw.Graph([0, 1], [0, 0], num_nodes=(2, 1)), (x, torch.ones(1, 3)))
    assert "SAGEConv on 1 nodes, 2 edges, 4 dense features" in pair


def test_a_trainer_settles_the_width() -> None:
    ds = gw.synthetic("default", scale=0.02)
    histories = []
    for width in (-1, ds.num_features):
        torch.manual_seed(5)
        histories.append(gw.Trainer(gw.nn.SAGE(width, 16, ds.num_classes), ds).fit(3)["loss"])
    assert histories[0] == histories[1]


@pytest.mark.parametrize("reducer", ["sum", "max", "stack", torch.stack])
def test_functions_a_relation(reducer: Any) -> None:
    edges = _edges(3)
    graph = _graph(edges)
    h = {name: torch.randn(count, 2, dtype=torch.float64, requires_grad=True) for name, count in SIZES.items()}
    w = {("author", "writes", "paper"): torch.randn(20, 1, dtype=torch.float64)}
    weighted = (fn.u_mul_e("h", "w", "m"), fn.sum("m", "out"))
    plain = (fn.copy_u("h", "m"), fn.max("m", "out"))
    functions = {"writes": weighted, ("paper", "cites", "paper"): plain, "has": plain}
    found = gw.nn.multi_update_all(graph, functions, reducer, ndata={"h": h}, edata={"w": w})
    assert list(found) == ["paper"]
    src, dst = edges["author", "writes", "paper"]
    one = torch.zeros(9, 2, dtype=torch.float64).index_add(0, dst, h["author"][src] * w["author", "writes", "paper"])
    rest = []
    for relation in (("paper", "cites", "paper"), ("field", "has", "paper")):
        src, dst = edges[relation]
        rows = h[relation[0]][src]
        best = [rows[dst == node].amax(0) if (dst == node).any() else rows.new_zeros(2) for node in range(9)]
        rest.append(torch.stack(best))
    parts = [one, *rest]
    over = torch.stack(parts)
    wanted = {"sum": over.sum(0), "max": over.amax(0), "stack": torch.stack(parts, 1)}.get(str(reducer), over)
    torch.testing.assert_close(found["paper"]["out"], wanted, rtol=1e-12, atol=1e-12)


def test_the_softmax_over_edges_is_pygs() -> None:
    from torch_geometric.utils import softmax

    draw = torch.Generator().manual_seed(6)
    src, dst = torch.randint(0, 12, (2, 70), generator=draw).unbind()
    graph = gw.Graph(src, dst, num_nodes=15)
    for shape in ((70,), (70, 3), (70, 2, 1)):
        scores = (5 * torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_()
        for side, ends in (("dst", dst), ("src", src)):
            found, wanted = gw.nn.edge_softmax(graph, scores, side), softmax(scores, ends, num_nodes=15)
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
            seed = torch.randn(shape, generator=draw, dtype=torch.float64)
            mine, theirs = (torch.autograd.grad((y * seed).sum(), scores)[0] for y in (found, wanted))
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda g: gw.nn.HeteroConv({"writes": gw.nn.SAGEConv(4, 2)}), ConfigError, "expected keys .source type, name"),
    (lambda g: gw.nn.HeteroConv({}), ConfigError, "at least one relation"),
    (lambda g: gw.nn.HeteroConv({RELATIONS[0]: nn.Identity()}, aggr="median"), ConfigError, "aggr among sum, mean"),
    (
        lambda g: gw.nn.HeteroConv({("a", "b", "c"): nn.Identity()})(g, _features()),
        GraphError,
        "expected relations among",
    ),
    (lambda g: gw.nn.to_hetero(gw.nn.GCN(-1, 8, 2), g), ConfigError, "layers between two sets of nodes"),
    (lambda g: gw.nn.to_hetero(gw.nn.SAGE(-1, 8, 2, jumping="cat"), g), ConfigError, "without jumping"),
    (lambda g: gw.nn.to_hetero(gw.nn.SAGE(-1, 8, 2), gw.Graph([0], [1])), GraphError, "expected a typed graph"),
    (lambda g: gw.nn.to_hetero(gw.nn.SAGE(-1, 8, 2), g, "cat"), ConfigError, "widths would grow"),
    (lambda g: gw.nn.to_hetero(gw.nn.SAGE(-1, 8, 2), g)(g, {"paper": torch.ones(2, 2)}), ShapeError, "9 rows of type"),
    (
        lambda g: gw.nn.HeteroConv({RELATIONS[0]: gw.nn.SAGEConv((-1, -1), 2)})(g, {"paper": torch.ones(9, 2)}),
        ShapeError,
        "rows of all types of its relations, got none of author",
    ),
    (lambda g: gw.nn.multi_update_all(g, {"reads": ()}, ndata={}), GraphError, "expected relations among"),
    (lambda g: gw.nn.multi_update_all(g, {}, "median"), ConfigError, "cross_reducer among"),
    (lambda g: gw.nn.edge_softmax(g, torch.ones(3)), ShapeError, "80 rows of scores"),
]


def test_types_that_receive_nothing_are_told() -> None:
    graph, x = _graph(_edges()), _features()
    with pytest.warns(gw.errors.DataWarning, match="type field receive no edge.*add_inverse_relations"):
        model = gw.nn.to_hetero(gw.nn.SAGE(-1, 8, 2), graph).double()
    assert sorted(model(graph, x)) == ["author", "paper"]


class _Deep(gw.nn.CompiledModule):
    """A user's module whose first number is no width."""

    def __init__(self, depth: int) -> None:
        super().__init__(4)
        self.depth = depth

    def define(self, frame: Any, x: Any) -> Any:
        return x


def test_only_in_features_may_be_left_open() -> None:
    assert type(_Deep(-1)) is _Deep
    assert _Deep(-1).depth == -1


@pytest.mark.filterwarnings("ignore:to_hetero. nodes of type:graphweft.errors.DataWarning")
@pytest.mark.parametrize(("call", "kind", "text"), BAD)
def test_wrong_use_is_one_line(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        call(_graph(_edges()))
    assert "\n" not in str(caught.value)
