"""Several processes that train as one: starting them, what they tell each other, and what happens when one is lost."""

from typing import TYPE_CHECKING

from graphweft._namespace import lazy

if TYPE_CHECKING:
    from graphweft.dist.ranks import Ranks as Ranks

__all__ = ["Ranks"]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"Ranks": "graphweft.dist.ranks"})
