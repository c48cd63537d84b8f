"""The constants of the cost model in one table: each a value with its origin.

Shares are ratios to measured peaks, so that they hold on other CPUs of the same kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CostConstant:
    """A number of the model and where it comes from."""

    value: float
    origin: str


_SUITE = "pyc_mlir.measure.dispatch_timer on the suite's programs, 1 core, Zen 4 with AVX-512"
_OLD = "single measurements on AVX-512 CPUs, for ranking only"
_SWEEP = "sweeps of the suite `latency`, when the kernels were written"
# What a figure that is published, not measured, is worth. A calibration replaces both.
_PUBLISHED = {
    "published.flops": CostConstant(
        0.6, "Zen 4: 115 of 192 GFLOP/s a core (one 512-bit FMA a cycle)"
    ),
    "published.bandwidth": CostConstant(0.5, "Zen 4, two virtual cores: 21 of 40 GB/s copied"),
}
# Shares of the measured peak that kernels reach, by family.
_KERNELS = {
    "kernel": CostConstant(0.4, "families without a row of their own"),
    "kernel.gemm": CostConstant(0.97, _SUITE),
    "kernel.batch_gemm": CostConstant(0.92, _SUITE),
    "kernel.gemv": CostConstant(
        0.9, "two dispatches of the suite's mlp with batch 1; taken as gemm's"
    ),
    "kernel.conv": CostConstant(
        0.97, "layers of ResNet-50 and U-Net, 1 core, Zen 4 with AVX-512: 0.85 to 1.0"
    ),
    "kernel.winograd": CostConstant(0.98, "12 layers, 1 core, Zen 4: within 1.6 of the time"),
    "kernel.winograd.transform": CostConstant(0.7, "the same layers"),
    "kernel.depthwise": CostConstant(0.5, "taken, not measured yet"),
    "kernel.pool": CostConstant(0.5, "taken, not measured yet"),
    "kernel.int8.amx": CostConstant(
        22.0, "25 layers, 1 core, Xeon 6 with AMX, of 27 for tdpbusd in registers; within 1.6"
    ),
    "kernel.int8.vnni": CostConstant(2.5, "ResNet-18, 1 core, Zen 4: four products a lane"),
    "kernel.int8.madd": CostConstant(1.3, "the same with AVX2"),
    "kernel.int8.plain": CostConstant(0.3, "taken, not measured"),
    "kernel.packed": CostConstant(0.6, "taken from its instructions: 1.3 to 1.7 a product"),
    "kernel.packed.rounded": CostConstant(1.5, "4 bits, 64 rows, 1 core, Xeon with AVX-512 VNNI"),
    "kernel.rows": CostConstant(0.37, _SUITE),
    "kernel.resize": CostConstant(0.5, "taken as elementwise's"),
    "kernel.concat": CostConstant(0.5, "taken as elementwise's"),
    "kernel.elementwise": CostConstant(0.5, "taken between rows and gemm; not measured"),
}
# The speed of IREE 3.13's code over that of a generated kernel, by the first op of a group.
_IREE_OPS = {
    "iree.op.matmul": CostConstant(0.5, _OLD),
    "iree.op.integer_matmul": CostConstant(0.1, "integer products, Zen 4: 90 % of a BERT's time"),
    "iree.op.integer_conv2d": CostConstant(0.02, "taken from integer products"),
    "iree.op.block_matmul": CostConstant(
        0.05, "decoder of 98M weights, AVX2: unpacked in each call"
    ),
    "iree.op.softmax": CostConstant(0.25, _OLD),
    "iree.op.log_softmax": CostConstant(0.25, _OLD),
    "iree.op.layernorm": CostConstant(0.5, _OLD),
    "iree.op.rmsnorm": CostConstant(0.5, _OLD),
    "iree.op.argmax": CostConstant(0.05, _OLD),
    "iree.op.transpose": CostConstant(0.7, _OLD),
    "iree.op.leading_reduction": CostConstant(0.4, _OLD),
    "iree.op": CostConstant(0.9, _OLD),
}
# Shares of the measured peak that whole dispatches of IREE's code reach, by the kind of the linalg
# op that does most. Those of strided access were taken from the CPU time of whole calls.
_IREE_DISPATCHES = {
    "iree.contraction": CostConstant(0.4, _SUITE + ": 0.2 to 1.0"),
    "iree.convolution": CostConstant(0.5, _SUITE + ": 0.4 to 1.0, 0.05 with one input channel"),
    "iree.convolution.strided": CostConstant(0.1, "3x3 and 7x7 of stride 2, NCHW, of a ResNet"),
    "iree.convolution.grouped": CostConstant(
        0.04, "3x3: 8 groups of 64 channels, depthwise of 96; NCHW"
    ),
    "iree.strided": CostConstant(0.025, "1x1 convolutions of stride 2, NCHW, of a ResNet"),
    "iree.pooling": CostConstant(0.05, _SUITE),
    "iree.reduction": CostConstant(0.15, _SUITE + ": 0.05 to 0.45"),
    "iree.pointwise": CostConstant(0.15, "taken from reductions; not measured"),
}
_OTHERS = {
    "waking.worth_seconds": CostConstant(
        1e-4, "softmax of 1024x512 on both devices; docs/kernels.md"
    ),
    "cache.l2": CostConstant(4, "L2 over memory, bytes/s: 86 over 21 GB/s, pyc-doctor --calibrate"),
    "cache.l2_reach": CostConstant(
        2, "multiples of L2 read at its speed: 97 GB/s of 1.6 MB weights"
    ),
    "cache.l3": CostConstant(
        1.5, "L3 over memory, bytes/s: 32 over 21 GB/s, pyc-doctor --calibrate"
    ),
    "dispatch.seconds": CostConstant(0.3e-6, "0.1 to 0.5 us between dispatches, local-sync"),
    "chunk.share": CostConstant(0.25, "share of published peaks in parts of a region; " + _SWEEP),
    "chunk.dispatch_seconds": CostConstant(3e-6, _SWEEP),
    "chunk.cache": CostConstant(8, "the last cache over memory; " + _SWEEP),
    "chunk.tile": CostConstant(64 * 64, "elements of a result that one core works on at a time"),
    "fork.worth_seconds": CostConstant(
        1.5e-6,
        "work that is cut for several cores: a fork and join take 0.2 to 0.3 us; "
        "docs/design-notes/threads.md",
    ),
}
CONSTANTS: Mapping[str, CostConstant] = {
    **_PUBLISHED,
    **_KERNELS,
    **_IREE_OPS,
    **_IREE_DISPATCHES,
    **_OTHERS,
}


def constant(name: str) -> float:
    """Return a constant; that of its nearest parent where `a.b` has no row of its own."""
    while name not in CONSTANTS:
        name, dot, _ = name.rpartition(".")
        assert dot, f"cost model: no constant {name}"
    return CONSTANTS[name].value
