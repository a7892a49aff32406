"""Sampling as operations: which hop of which draw, and what the sampler does to its structure on the way.

Comes in: a graph, seeds and the key of the draws. Goes out: the block of one hop, and the ids of its sources. All
``SAMPLE`` values over the same operands and fan-outs are hops of one draw, so a runtime draws once for all of them.
Symbols: seeds ``B`` are the destinations of hop 0, ``B1`` its sources and the destinations of hop 1. Listed in
``ops.py``. Source: Joestar, section 5.3 (sampling and model in one data-flow graph).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphweft.ir.expect import expect_graph, expect_index, require
from graphweft.ir.residency import IndexType, StructType, Type

LOOPS = (None, "none", "one")


def sample(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Block ``hop``. ``open``: its sources are all nodes, by id; ``loops``: none, or one each; ``turned``: reversed."""
    graph, seeds, key = expect_graph("sample", types[0]), expect_index("sample", types[1]), types[2]
    require("sample", graph.square, "a graph whose sources are its destinations", graph)
    require("sample", seeds.into == graph.dst and seeds.rows is not None, f"ids of {graph.dst}", seeds)
    require("sample", key == IndexType(None, None), "a key", key)
    fanouts, hop = attrs["fanouts"], attrs["hop"]
    require("sample", 0 <= hop < len(fanouts), f"a hop below {len(fanouts)}", hop)
    require("sample", attrs.get("loops") in LOOPS, "loops none or one", attrs.get("loops"))
    require("sample", not attrs.get("open") or hop == len(fanouts) - 1, "an open hop to be the last", hop)
    source = graph.src if attrs.get("open") else f"{seeds.rows}{hop + 1}"
    destination = str(seeds.rows) if hop == 0 else f"{seeds.rows}{hop}"
    edge = f"{graph.edge}{hop}" + {None: "", "none": "-loops", "one": "+loops"}[attrs.get("loops")]
    drawn = StructType(source, destination, edge)
    return replace(drawn, src=drawn.dst, dst=drawn.src) if attrs.get("turned") else drawn


def src_ids(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """One id of the graph, the second operand, per source of the block."""
    block, graph = expect_graph("src_ids", types[0]), expect_graph("src_ids", types[1])
    return IndexType(block.src, graph.src)
