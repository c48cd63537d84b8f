"""The three answers to whether two programs compute the same."""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.pipelines.driver.base import Relation


@dataclass(frozen=True)
class Step:
    """Two nodes that are equal over leaves that were proved before.

    rule: ``same term`` or ``normal form``. left, right: the nodes for people; `a` and `b` their
    numbers among the nodes of the decomposed programs, `cut` those of the leaves in the first.
    """

    rule: str
    left: str
    right: str
    a: int
    b: int
    cut: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """One run over fields: the primes of its tower, the seed of its arguments."""

    primes: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class FloatCase:
    """Both programs in floats on one kind of arguments.

    first, second: the largest error beside f64 over the largest result, None where that is not
    finite. lost: how many elements the first has right where the second is not finite, or is
    another integer, condition or infinity.
    """

    name: str
    first: float | None
    second: float | None
    lost: int


@dataclass(frozen=True)
class Proof:
    """Both programs compute the same, in the sense of `relation`, for arguments of `types`.

    kind: ``structural`` (the same graph), ``index`` (the same operations on the same elements),
    ``algebraic`` (`steps`, each a normal form; the fields agree too), ``probabilistic`` (`trials`
    over fields agree), ``exhaustive`` (all values were tried) or ``solver`` (z3 finds no arguments
    with other bits). bound: the chance that the trials
    agree by accident, if residues of different functions do so no oftener than random numbers; 0
    for other kinds. floats: the clause of safety in floats; it is no part of the proof. digests:
    those of both programs, by which a replay knows them.
    """

    relation: Relation
    kind: str
    types: tuple[str, ...]
    digests: tuple[str, str]
    steps: tuple[Step, ...] = ()
    trials: tuple[Trial, ...] = ()
    bound: float = 0.0
    floats: tuple[FloatCase, ...] = ()

    @property
    def is_safe_in_floats(self) -> bool:
        """True if no case makes the second program worse: elements lost, or 8 times the error.

        True for a relation of bits, which needs no cases.
        """
        return all(
            not c.lost and (c.first is None or c.second is None or
                               c.second <= max(8 * c.first, 1e-6))
            for c in self.floats
        )  # fmt: skip

    def __str__(self) -> str:
        lines = [f"proof: {self.relation.text}; {self.kind}"]
        if self.trials:
            primes = max(len(t.primes) for t in self.trials)
            by_accident = f"chance of an accident {self.bound:.0e}"
            lines.append(
                f"  {len(self.trials)} trials over towers of {primes} primes; {by_accident}"
            )
        if self.steps:
            normal = sum(s.rule == "normal form" for s in self.steps)
            lines.append(f"  steps: {len(self.steps)}, by normal forms: {normal}")
        for case in self.floats:
            errors = ["not finite" if e is None else f"{e:.0e}" for e in (case.first, case.second)]
            more = f", {case.lost} elements are right in the first alone" if case.lost else ""
            lines.append(f"  floats, {case.name}: errors {errors[0]} and {errors[1]}{more}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Counterexample:
    """Arguments for which both programs differ: a theorem, by integers or by disjoint balls.

    inputs: the arguments. output, index: the result and the element that differs. first, second:
    its values. relation: the strongest equality that they refute.
    """

    relation: Relation
    kind: str
    inputs: tuple[np.ndarray, ...]
    output: int
    index: tuple[int, ...]
    first: str
    second: str

    def __str__(self) -> str:
        place = f"result {self.output}[{', '.join(map(str, self.index))}]"
        return (
            f"counterexample: not {self.relation.text}; {self.kind}\n"
            f"  {place}: {self.first} and {self.second}"
        )


@dataclass(frozen=True)
class Unknown:
    """No answer. reason: what kept the engines from one; pair: the first nodes without partner."""

    reason: str
    pair: str = ""

    def __str__(self) -> str:
        return f"unknown: {self.reason}" + (f"\n  no partner for {self.pair}" if self.pair else "")


Answer = Proof | Counterexample | Unknown
