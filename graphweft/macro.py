"""Training in macro-batches and from disk, under its public names: ``gw.macro``.

A store is prepared once (``prepare_store``) and opened (``Store``); ``Macro`` says how a trainer makes macro-batches,
and ``MultistageLoader`` makes them in a loop of one's own. Each is imported when it is first asked for: preparing a
store within a few megabytes does not load the trainer.
"""

from typing import TYPE_CHECKING

from graphweft._namespace import lazy

if TYPE_CHECKING:
    from graphweft.data.graph_files import GraphFiles as GraphFiles
    from graphweft.data.prepare_store import prepare_store as prepare_store
    from graphweft.loader.multistage import MultistageLoader as MultistageLoader
    from graphweft.sample.stages import LargeBatch as LargeBatch
    from graphweft.sample.stages import Parts as Parts
    from graphweft.sample.stages import Whole as Whole
    from graphweft.storage.store import Store as Store
    from graphweft.train.macro import Macro as Macro

__all__ = ["GraphFiles", "LargeBatch", "Macro", "MultistageLoader", "Parts", "Store", "Whole", "prepare_store"]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "GraphFiles": "graphweft.data.graph_files",
            **dict.fromkeys(("LargeBatch", "Parts", "Whole"), "graphweft.sample.stages"),
            "Macro": "graphweft.train.macro",
            "MultistageLoader": "graphweft.loader.multistage",
            "Store": "graphweft.storage.store",
            "prepare_store": "graphweft.data.prepare_store",
        },
    )
