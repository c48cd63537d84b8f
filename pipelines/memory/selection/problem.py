"""Problems of selection: nodes that have candidates, and memory that they need over time.

    minimize    sum of cost[v][s(v)] over nodes + sum of table[s(v), s(w)] over edges
    so that     sum of usage[v][s(v)] over nodes alive at t <= limit, at every time t

A node is alive in a half-open interval of times. The problems of the ASPLOS 2025 contest on
intra-operator parallelism have this form, and so has the choice of kernels and memory plans.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode

# Costs from here on forbid what they are the cost of.
FORBIDDEN = 1e15
Floats = np.ndarray
Ints = np.ndarray


@dataclass(frozen=True, eq=False)
class Edge:
    """Two nodes, and the cost of each pair of candidates: f64[of the first node, of the second]."""

    first: int
    second: int
    table: Floats


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """Nodes by number: costs and usages f64[candidates] each, lives i64[nodes, 2] half-open.

    limit: the most bytes at any time.
    """

    costs: Sequence[Floats]
    usages: Sequence[Floats]
    lives: Ints
    edges: Sequence[Edge]
    limit: float

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for arrays that do not fit each other."""
        sizes = [len(c) for c in self.costs]
        fits = (
            len(self.usages) == len(sizes) == len(self.lives)
            and all(len(u) == n > 0 for u, n in zip(self.usages, sizes, strict=True))
            and all(e.table.shape == (sizes[e.first], sizes[e.second]) for e in self.edges)
        )
        if not fits:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                "selection problem: expected a cost and a usage for each candidate, lives of nodes "
                "and tables of their sizes, got others",
            )

    def cost(self, choice: Ints) -> float:
        """Return the cost of a choice, i64[nodes]; infinite where something forbidden is chosen."""
        parts = [float(c[s]) for c, s in zip(self.costs, choice, strict=True)]
        parts += [float(e.table[choice[e.first], choice[e.second]]) for e in self.edges]
        return float("inf") if max(parts, default=0.0) >= FORBIDDEN else float(sum(parts))

    def use(self, choice: Ints) -> Floats:
        """Return the bytes at each time, f64[times]."""
        used = np.array([u[s] for u, s in zip(self.usages, choice, strict=True)], np.float64)
        change = np.zeros(int(self.lives.max(initial=0)) + 1)
        living = self.lives[:, 0] < self.lives[:, 1]
        np.add.at(change, self.lives[living, 0], used[living])
        np.add.at(change, self.lives[living, 1], -used[living])
        return np.cumsum(change)

    def feasible(self, choice: Ints) -> bool:
        """Return whether a choice has nothing forbidden and stays within the limit."""
        finite = self.cost(choice) < FORBIDDEN
        return finite and bool(self.use(choice).max(initial=0.0) <= self.limit)


def from_contest(data: bytes) -> SelectionProblem:
    """Read an instance of the contest, JSON. Raises PycError (BAD_ARGUMENT) for another text.

    Source: google/iopddl, "ASPLOS / EuroSys 2025 contest on intra-operator parallelism".
    """
    try:
        told = json.loads(data)["problem"]
        nodes, edges = told["nodes"], told["edges"]
        costs = [np.asarray(c, np.float64) for c in nodes["costs"]]
        usages = [np.asarray(u, np.float64) for u in nodes["usages"]]
        lives = np.asarray(nodes["intervals"], np.int64).reshape(-1, 2)
        made = [
            Edge(a, b, np.asarray(t, np.float64).reshape(len(costs[a]), len(costs[b])))
            for (a, b), t in zip(edges["nodes"], edges["costs"], strict=True)
        ]
        return SelectionProblem(costs, usages, lives, made, float(told["usage_limit"]))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"contest instance: expected JSON with nodes, edges and a usage limit, got {error!r}",
        ) from None
