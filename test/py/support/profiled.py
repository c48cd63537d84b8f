"""Programs for tests of profiles: one with kernels and IREE's code, and a profile made by hand."""

from functools import cache

import numpy as np

from pyc_mlir import compile
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.measure.dispatch_timer import DispatchSpan
from pyc_mlir.profile.dispatches import ProfileRow
from pyc_mlir.profile.profile import Disturbance, Profile, with_rest

X = np.ones((8, 64), np.float32)
WEIGHT = np.full((64, 64), 0.01, np.float32)


def softmax_of_layers(x):
    """Two products with epilogues, then a normalization."""
    hidden = np.maximum(x @ WEIGHT + 1, 0)
    raised = np.exp(hidden @ WEIGHT)
    return raised / np.sum(raised, -1, keepdims=True)


@cache
def artifact_of(kernels: str = "all", **options) -> Artifact:
    """The artifact of `softmax_of_layers`, compiled once."""
    return compile(softmax_of_layers, [X], kernels=kernels, **options).artifact


def made_by_hand() -> Profile:
    """A call of 10 s: a kernel, IREE's code twice, one of them of unknown ops."""
    rows = [
        ProfileRow(
            "pyc_gemm_0",
            2.0,
            0.0,
            ("group.1",),
            ("matmul+add",),
            ("group.1",),
            ("dense <1>",),
            "gemm",
            "Gemm()",
            2.0,
            1.9,
            2.2,
            9,
            4e6,
            1 << 20,
            0.5,
        ),
        ProfileRow(
            "main_dispatch_0", 6.0, 0.0, ("conv2d.2",), ("conv2d",), ("conv2d.2",), code="IREE"
        ),
        ProfileRow("main_dispatch_1", 1.0, 0.0, code="IREE"),
    ]
    return Profile(
        program="abcd",
        measured=True,
        how="measured by hand",
        roof="1 GFLOP/s",
        seconds=10.0,
        rows=with_rest(rows, 10.0, ProfileRow("", 0.0, 0.0, calls=9)),
        disturbance=Disturbance(10.0, 8.0, 9.0),
        device="local-sync",
        threads=1,
        entry="main",
        spans=(
            DispatchSpan("pyc_gemm_0", 0.0, 2.0, (2, 1, 1)),
            DispatchSpan("main_dispatch_0", 1.0, 7.0),
            DispatchSpan("main_dispatch_1", 8.0, 9.0),
        ),
    )
