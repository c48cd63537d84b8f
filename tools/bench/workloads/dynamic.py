"""Networks of the zoo whose sizes are known at run time only: exported once, called at several.

`DYNAMIC` maps a name to a network with its dynamic axes, the ranges that a compile is told, and the
sizes of calls. Its model is that of the name ``NAME.any`` in `export.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Ranges
from pyc_mlir.tools.bench.workloads.networks import BY_NAME, Network, inputs

_UNSEEN = 4


@dataclass(frozen=True)
class Dynamic:
    """A network with axes that have a name and a range, and the sizes that it is called with.

    `how` is that of `Quantized`, empty for f32. No sizes stand for drawn ones of the last axis.
    """

    network: Network
    axes: Mapping[int, str]
    ranges: Ranges
    sizes: tuple[tuple[int, ...], ...]
    how: str = ""
    is_masked: bool = False

    @property
    def kind(self) -> str:
        """The kind of its network."""
        return self.network.kind

    def tensors(self, sizes: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Return seeded inputs of these sizes; of a mask, the last tokens of each row are none."""
        shape = [1, *self.network.shape]
        for axis, size in zip(self.axes, sizes, strict=True):
            shape[axis] = size
        (x,) = inputs(replace(self.network, shape=tuple(shape[1:])), shape[0])
        if not self.is_masked:
            return (x.numpy(),)
        mask = np.ones(shape, np.int64)
        mask[:, max(shape[1] - _UNSEEN, 1) :] = 0
        return x.numpy(), mask


def _trunk() -> Any:
    """Make ResNet-18 without its last two layers: features of images of any size."""
    network = BY_NAME["resnet18"].build()
    return type(network.layer1)(*list(network.children())[:-2])


_BATCH = {0: "batch"}, {"batch": (1, 32)}, ((1,), (8,), (32,))
_WORDS = {0: "batch", 1: "length"}, {"batch": (1, 8), "length": (1, 512)}
_BERT = (*_WORDS, ((1, 32), (1, 128), (8, 128), (1, 384), ()))
_DECODER = (*_WORDS, ((1, 32), (4, 128)))
_EDGES = {"height": (64, 1024), "width": (64, 1024)}
_AREA = {2: "height", 3: "width"}, _EDGES, ((256, 320), (512, 512))
_IMAGES = {name: BY_NAME[name] for name in ("resnet18", "mobilenet_v2", "mobilenet_v3_small")}
DYNAMIC: Mapping[str, Dynamic] = {
    **{name: Dynamic(network, *_BATCH) for name, network in _IMAGES.items()},
    **{f"{name}-int8": Dynamic(n, *_BATCH, how="static") for name, n in _IMAGES.items()},
    "resnet18-trunk": Dynamic(replace(_IMAGES["resnet18"], build=_trunk), *_AREA),
    "bert": Dynamic(BY_NAME["bert"], *_BERT, is_masked=True),
    "bert-dynamic": Dynamic(BY_NAME["bert"], *_BERT, how="dynamic", is_masked=True),
    "gpt2": Dynamic(BY_NAME["gpt2"], *_DECODER),
    "llama": Dynamic(BY_NAME["llama"], *_DECODER),
}
