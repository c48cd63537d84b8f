"""A canonical text of a graph: equal for graphs that differ in names and order only.

Comes in: vertices with labels and operands, in an order in which operands come first. Goes out: one
line a vertex, operands by line number. Neither the order of independent vertices nor that of a
commutative vertex's operands matters. The text says all of the graph, so that graphs with equal
texts are equal; labels decide what a graph is told apart by.

Vertices are first coloured by what they compute and by who uses them, until no round tells more of
them apart (colour refinement, Weisfeiler and Leman 1968). Operands that still look alike are told
apart one by one, as in McKay and Piperno, "Practical graph isomorphism, II" (2014); the smallest
text wins. After `MAX_TRIALS` of them the rest is taken as it stands: equal graphs may then have two
texts, which loses a match and never makes a wrong one.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_TRIALS = 64
_DIGEST = 16


@dataclass(frozen=True)
class Vertex:
    """One operation: all that is known of it as text, and its operands.

    An operand is the number of the vertex that makes it and which of its results it is. With
    `sharable`, vertices of equal labels and operands are one.
    """

    label: str
    operands: tuple[tuple[int, int], ...] = ()
    commutative: bool = False
    sharable: bool = False


def canonical_text(vertices: Sequence[Vertex]) -> str:
    """Return the graph as text. Operands must have smaller numbers than their users."""
    graph = _Graph(_shared(vertices))
    return _Search(graph).smallest(graph.refined([b""] * len(graph.vertices)))


def _shared(vertices: Sequence[Vertex]) -> list[Vertex]:
    numbers: list[int] = []
    kept: list[Vertex] = []
    known: dict[Vertex, int] = {}
    for vertex in vertices:
        operands = tuple((numbers[v], result) for v, result in vertex.operands)
        if vertex.commutative:
            operands = tuple(sorted(operands))
        moved = Vertex(vertex.label, operands, vertex.commutative, vertex.sharable)
        number = known.get(moved) if vertex.sharable else None
        if number is None:
            number = known[moved] = len(kept)
            kept.append(moved)
        numbers.append(number)
    return kept


class _Graph:
    """Vertices with their users: pairs of a user and the place of the operand, "*" for any."""

    def __init__(self, vertices: list[Vertex]) -> None:
        self.vertices = vertices
        self.users: list[list[tuple[int, str]]] = [[] for _ in vertices]
        for number, vertex in enumerate(vertices):
            for place, (operand, result) in enumerate(vertex.operands):
                at = "*" if vertex.commutative else str(place)
                self.users[operand].append((number, f"{at}.{result}"))

    def refined(self, colours: list[bytes]) -> list[bytes]:
        """Return colours told apart by operands and users until a round tells no more apart."""
        classes = 0
        while True:
            colours = self._down(self._up(colours))
            found = len(set(colours))
            if found <= classes:
                return colours
            classes = found

    def _up(self, colours: list[bytes]) -> list[bytes]:
        made: list[bytes] = []
        for number, vertex in enumerate(self.vertices):
            operands = [made[v] + str(result).encode() for v, result in vertex.operands]
            if vertex.commutative:
                operands.sort()
            made.append(_hash(colours[number], vertex.label.encode(), *operands))
        return made

    def _down(self, colours: list[bytes]) -> list[bytes]:
        made = list(colours)
        for number in reversed(range(len(colours))):
            used = sorted(made[user] + at.encode() for user, at in self.users[number])
            made[number] = _hash(colours[number], *used)
        return made

    def tied(self, colours: list[bytes]) -> list[int]:
        """Return operands that look alike of the first such commutative vertex by colour.

        Empty where there are none.
        """
        for number in sorted(range(len(colours)), key=colours.__getitem__):
            vertex = self.vertices[number]
            if not vertex.commutative:
                continue
            operands = sorted({v for v, _ in vertex.operands})
            for operand in operands:
                alike = [v for v in operands if colours[v] == colours[operand]]
                if len(alike) > 1:
                    return alike
        return []

    def text(self, colours: list[bytes]) -> str:
        """Return the vertices in the order of a walk from the unused ones, operands first."""
        lines: list[str] = []
        numbers: dict[int, int] = {}
        ends = sorted(
            (n for n in range(len(colours)) if not self.users[n]), key=colours.__getitem__
        )
        stack = list(reversed(ends))
        while stack:
            number = stack[-1]
            operands = self._in_order(number, colours)
            waiting = [v for v, _ in reversed(operands) if v not in numbers]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if number not in numbers:
                numbers[number] = len(lines)
                lines.append(_line(self.vertices[number].label, operands, numbers))
        return "".join(lines)

    def _in_order(self, number: int, colours: list[bytes]) -> list[tuple[int, int]]:
        vertex = self.vertices[number]
        if not vertex.commutative:
            return list(vertex.operands)
        return sorted(vertex.operands, key=lambda operand: (colours[operand[0]], operand[1]))


class _Search:
    """The smallest text over the ways to tell tied operands apart, within `MAX_TRIALS`."""

    def __init__(self, graph: _Graph) -> None:
        self._graph = graph
        self._left = MAX_TRIALS

    def smallest(self, colours: list[bytes]) -> str:
        while tied := self._graph.tied(colours):
            if self._left <= 0:
                colours = self._told_apart(colours, tied[0])
                continue
            self._left -= len(tied)
            return min(self._texts(colours, tied))
        return self._graph.text(colours)

    def _texts(self, colours: list[bytes], tied: list[int]) -> Iterator[str]:
        for one in tied:
            if one == tied[0] or self._left > 0:
                yield self.smallest(self._told_apart(colours, one))

    def _told_apart(self, colours: list[bytes], vertex: int) -> list[bytes]:
        marked = list(colours)
        marked[vertex] = _hash(marked[vertex], b"first")
        return self._graph.refined(marked)


def _line(label: str, operands: list[tuple[int, int]], numbers: dict[int, int]) -> str:
    read = (f"%{numbers[v]}" + (f":{result}" if result else "") for v, result in operands)
    escaped = label.replace("\\", "\\\\").replace("\n", "\\n")
    return f"({', '.join(read)}) {escaped}\n"


def _hash(*parts: bytes) -> bytes:
    joined = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hashlib.blake2b(joined, digest_size=_DIGEST).digest()
