"""The compressed forms of one set of edges, made on demand.

Comes in: edges by destination, by source, or both, also as a user gives them. Goes out: :class:`Forms`, which makes
what is missing once. Held by graphs; a graph and its reverse share theirs.
"""

from __future__ import annotations

from graphweft._errors import GraphError, ShapeError
from graphweft._torch_private import plainly
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.ids import Ids, as_count, as_ids


class Forms:
    """The compressed forms of one set of edges and what is known about them; shared by a graph and its reverse."""

    def __init__(self, by_dst: Adjacency | None, by_src: Adjacency | None) -> None:
        self.by: list[Adjacency | None] = [by_dst, by_src]
        self._is_given = by_dst is not None, by_src is not None
        self.loose: list[Adjacency | None] = [None, None]  # without edge ids
        self.symmetric: bool | None = None
        self.loops: bool | None = None

    def full(self, side: int) -> Adjacency:
        """By destination (0) or by source (1), with edge ids."""
        form, other = self.by[side], self.by[1 - side]
        if form is None:
            if other is None:
                raise GraphError("Graph: internal error, no adjacency is stored; please report this")
            form = self.by[side] = other.transpose()
            if not self.symmetric:
                self.loose[side] = None  # the same order in every row
        return form

    def unlabelled(self, side: int, square: bool) -> Adjacency:
        """As :meth:`full`, but edge ids may be missing; a symmetric structure is its own transpose.

        The order in a row follows from the forms that were given, not from those that were made before: sums over rows
        have the same bits whatever else was asked for.
        """
        made = self.by[side]
        if made is not None and (self._is_given[side] or not self.is_symmetric(square)):
            return made
        form = self.loose[side]
        if form is None:
            other = self.by[1 - side]
            if other is None:
                raise GraphError("Graph: internal error, no adjacency is stored; please report this")
            if self.is_symmetric(square):
                form = Adjacency(other.indptr, other.indices, None, other.num_cols)
            else:
                form = other.transpose(edge_ids=False)
            self.loose[side] = form
        return form

    def is_symmetric(self, square: bool) -> bool:
        """Determined once, on whichever form is there."""
        if self.symmetric is None:
            self.symmetric = square and self.known().is_symmetric()
        return self.symmetric

    def share_facts(self, other: Forms) -> None:
        """The same edges under other numbers: what is known of ``other`` holds here."""
        self.symmetric, self.loops = other.symmetric, other.loops

    def made(self) -> list[Adjacency]:
        """Those that are there."""
        every = (*self.by, *self.loose)
        return [form for at, form in enumerate(every) if form is not None and not any(form is f for f in every[:at])]

    def empty(self) -> None:
        """Lets all of them go, of a graph that is not used any more and may be referred to still."""
        self.by, self.loose = [None, None], [None, None]

    def known(self) -> Adjacency:
        """Whichever form is there."""
        return self.full(0) if self.by[0] is not None else self.full(1)


@plainly
def given_csc(who: str, indptr: Ids, indices: Ids, num_src: Ids | None, edge_ids: Ids | None) -> Adjacency:
    """In-edges as a user gives them, checked, rows listed by ascending edge id.

    Raises: GraphError, IndexRangeError, DtypeError, ShapeError.
    """
    offsets, sources = as_ids(who, "indptr", indptr).long(), as_ids(who, "indices", indices)
    if offsets.numel() == 0:
        raise ShapeError(f"{who}: expected indptr with one entry more than nodes, got none")
    num_dst = offsets.numel() - 1
    count = num_dst if num_src is None else as_count(who, "num_src", num_src)
    ids = None if edge_ids is None else as_ids(who, "edge_ids", edge_ids)
    if ids is not None and ids.numel() != sources.numel():
        raise ShapeError(f"{who}: expected one edge id per index, {sources.numel()}, got {ids.numel()}")
    given = Adjacency(offsets, sources, ids if ids is None else ids.to(sources.dtype), count)
    if ids is not None and ids.dtype != sources.dtype:
        given = Adjacency(offsets, sources.long(), ids.long(), count)
    given.check(who)
    csc = given.fitted()
    if not csc.edge_ids_ascend():  # mailboxes list messages by ascending edge id
        csc = Adjacency.from_coo(*csc.to_coo(), num_dst, count)
    return csc
