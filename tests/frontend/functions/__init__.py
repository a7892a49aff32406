"""User functions of the kind people post in forums."""

from frontend.functions import (
    attention,
    convolutions,
    fallbacks,
    forum,
    networks,
    papers,
    reducers,
    relations,
    shapes,
)
from frontend.functions.world import CASES, FALLS_BACK, TYPED, World

__all__ = [
    "CASES",
    "FALLS_BACK",
    "TYPED",
    "World",
    "attention",
    "convolutions",
    "fallbacks",
    "forum",
    "networks",
    "papers",
    "reducers",
    "relations",
    "shapes",
]
