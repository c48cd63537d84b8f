"""A workload of the memory suite: a program, its arguments, and what class of programs it is of.

The program is a function in numpy style (so that the same function on float64 arrays is its
reference) or an ONNX file. Arguments may be trees: a training step takes its weights as a dict.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyc_mlir.frontends.python.specs import leaves, map_leaves
from pyc_mlir.tools.bench.peers.workload import BenchWorkload

CLASSES = ("wide", "chain", "inference", "training", "random")


@dataclass(frozen=True, eq=False)
class SuiteCase:
    """`source`, a function or the path of an ONNX file, on `inputs`; `kind` is one of CLASSES."""

    name: str
    kind: str
    source: Any
    inputs: tuple[Any, ...]

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arguments of a call, in the program's order."""
        return [leaf for _, leaf in leaves(self.inputs)]

    @property
    def specs(self) -> tuple[Any, ...]:
        """The compiler's specs for the arguments: trees for functions, else a flat list."""
        return self.inputs if callable(self.source) else tuple(self.arrays)

    @property
    def input_bytes(self) -> int:
        """Bytes of all arguments."""
        return sum(array.nbytes for array in self.arrays)

    def reference(self) -> list[np.ndarray]:
        """Compute the results in float64 by the function itself; other sources have none."""
        assert callable(self.source), f"{self.name}: only a function is its own reference"
        wide = map_leaves(lambda a: a.astype(np.float64), self.inputs)
        return [np.asarray(result) for _, result in leaves(self.source(*wide))]

    def workload(self) -> BenchWorkload:
        """Return the case with flat arguments, as a `BenchWorkload` to measure."""
        return BenchWorkload(self.name, self.source, tuple(self.arrays), self.reference)

    def named(self, name: str) -> "SuiteCase":
        """Return the case under another name."""
        return replace(self, name=name)


class SeededWeights:
    """Seeded f32 arrays, drawn one after another."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def activations(self, *shape: int) -> np.ndarray:
        """Draw from the normal distribution of deviation 1."""
        return self._rng.normal(0, 1, shape).astype(np.float32)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        """[rows, columns], scaled so that products keep the deviation of their left operand."""
        return self._rng.normal(0, gain * rows**-0.5, (rows, columns)).astype(np.float32)

    def vector(self, size: int, mean: float = 0.0) -> np.ndarray:
        """[size], close to `mean`."""
        return self._rng.normal(mean, 0.02, size).astype(np.float32)

    def window(self, size: int, channels: int, filters: int) -> np.ndarray:
        """[size, size, channels, filters] of a convolution in layout NHWC that a relu follows."""
        gain = (2 / (size * size * channels)) ** 0.5
        return self._rng.normal(0, gain, (size, size, channels, filters)).astype(np.float32)


def stacked(layers: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Compose the layers one after another, as a function of x."""

    def run(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return run
