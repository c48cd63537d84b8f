"""Find a minimal subset of many parts that still fails, by delta debugging.

The algorithm ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
IEEE TSE 28(2), 2002: try halves, then what is left without each of them, then smaller parts.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Part = TypeVar("Part")


def minimal(parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool]) -> tuple[Part, ...]:
    """Return parts, in their order, of which none can be left out; all together must fail.

    `fails` is asked about each subset once: O(n^2) times at worst, about 2 log2 n for one culprit.
    """
    left, count = tuple(parts), 2
    answers: dict[tuple[int, ...], bool] = {}
    numbers = tuple(range(len(left)))

    def ask(chosen: tuple[int, ...]) -> bool:
        if chosen not in answers:
            answers[chosen] = fails([left[i] for i in chosen])
        return answers[chosen]

    if ask(()):
        return ()
    while len(numbers) > 1:
        cuts = [
            numbers[len(numbers) * i // count : len(numbers) * (i + 1) // count]
            for i in range(count)
        ]
        smaller = next((c for c in cuts if ask(c)), None)
        if smaller is not None:
            numbers, count = smaller, 2
            continue
        rest = (tuple(i for i in numbers if i not in c) for c in cuts)
        smaller = next((r for r in rest if count > 2 and ask(r)), None)
        if smaller is not None:
            numbers, count = smaller, max(count - 1, 2)
        elif count >= len(numbers):
            break
        else:
            count = min(2 * count, len(numbers))
    return tuple(left[i] for i in numbers)
