"""Training in macro-batches and from disk, under its public names: ``gw.macro``.

A store is prepared once (:func:`prepare_store`) and opened (:class:`Store`); :class:`Macro` says how a trainer makes
macro-batches, and :class:`MultistageLoader` makes them in a loop of one's own.
"""

from graphweft.data.graph_files import GraphFiles
from graphweft.data.prepare_store import prepare_store
from graphweft.loader.multistage import MultistageLoader
from graphweft.sample.stages import LargeBatch, Parts, Whole
from graphweft.storage.store import Store
from graphweft.train.macro import Macro

__all__ = ["GraphFiles", "LargeBatch", "Macro", "MultistageLoader", "Parts", "Store", "Whole", "prepare_store"]
