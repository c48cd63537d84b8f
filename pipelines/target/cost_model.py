"""The one cost model: predicted seconds of kernels, of IREE's code, of dispatches and of copies.

Comes in: a target, or a target and the calibration of its machine. Goes out: a `Cost` for each
question. All times follow the roofline (Williams et al., 2009): arithmetic at a share of the
measured peak, or traffic at the bandwidth of the cache that holds it, whichever takes longer. The
shares are those of `CONSTANTS`, with their origin; docs/design-notes/cost-model.md states the error
that remains.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import Shape, TensorType
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Node, Work


@dataclass(frozen=True)
class Constant:
    """A number of the model and where it comes from."""

    value: float
    origin: str


_SUITE = "pyc_mlir.measure.dispatch_timer on the suite's programs, 1 core, Zen 4 with AVX-512"
_OLD = "single measurements on AVX-512 CPUs, for ranking only"
_SWEEP = "sweeps of the suite `latency`, when the kernels were written"
# What a figure that is published, not measured, is worth. A calibration replaces both.
_PUBLISHED = {
    "published.flops": Constant(0.6, "Zen 4: 115 of 192 GFLOP/s a core (one 512-bit FMA a cycle)"),
    "published.bandwidth": Constant(0.5, "Zen 4, two virtual cores: 21 of 40 GB/s copied"),
}
# Shares of the measured peak that kernels reach, by family.
_KERNELS = {
    "kernel": Constant(0.4, "families without a row of their own"),
    "kernel.gemm": Constant(0.9, _SUITE),
    "kernel.batch_gemm": Constant(0.7, _SUITE),
    "kernel.gemv": Constant(0.9, _SUITE),
    "kernel.rows": Constant(0.5, _SUITE),
    "kernel.elementwise": Constant(0.5, _SUITE),
}
# The speed of IREE 3.13's code over that of a generated kernel, by the first op of a group.
_IREE_OPS = {
    "iree.op.matmul": Constant(0.5, _OLD),
    "iree.op.softmax": Constant(0.25, _OLD),
    "iree.op.log_softmax": Constant(0.25, _OLD),
    "iree.op.layernorm": Constant(0.5, _OLD),
    "iree.op.rmsnorm": Constant(0.5, _OLD),
    "iree.op.argmax": Constant(0.05, _OLD),
    "iree.op.transpose": Constant(0.7, _OLD),
    "iree.op.leading_reduction": Constant(0.4, _OLD),
    "iree.op": Constant(0.9, _OLD),
}
# The same of whole dispatches, by the kind of their main linalg op.
_IREE_DISPATCHES = {
    "iree.contraction": Constant(0.4, _SUITE),
    "iree.convolution": Constant(0.2, _SUITE),
    "iree.reduction": Constant(0.1, _SUITE),
    "iree.pointwise": Constant(0.1, _SUITE),
}
_OTHERS = {
    "cache.speed": Constant(8, "bandwidth of the last cache over that of memory"),
    "dispatch.seconds": Constant(1e-6, _SUITE),
    "wake.seconds": Constant(10e-6, "pyc-doctor --calibrate, local-task against local-sync"),
    "chunk.share": Constant(0.25, "share of published peaks in parts of a region; " + _SWEEP),
    "chunk.dispatch_seconds": Constant(3e-6, _SWEEP),
    "chunk.tile": Constant(64 * 64, "elements of a result that one core works on at a time"),
    "alone.flops_seconds": Constant(40e-6, "one core's work below which a second one is not worth "
                                    "its wake-up; " + _SWEEP),
    "alone.read_seconds": Constant(80e-6, "the same for reading; " + _SWEEP),
}
CONSTANTS: Mapping[str, Constant] = {
    **_PUBLISHED,
    **_KERNELS,
    **_IREE_OPS,
    **_IREE_DISPATCHES,
    **_OTHERS,
}
# The families that compute groups by their first op; elementwise for all others.
_FAMILY_OF = {
    "matmul": "gemm",
    **dict.fromkeys(("softmax", "log_softmax", "layernorm", "rmsnorm"), "rows"),
}


def constant(name: str) -> float:
    """The value of a constant; that of its nearest parent where `a.b` has no row of its own."""
    while name not in CONSTANTS:
        name, dot, _ = name.rpartition(".")
        assert dot, f"cost model: no constant {name}"
    return CONSTANTS[name].value


@dataclass(frozen=True)
class Measurement:
    """A measured dispatch as plain data: its symbol, seconds, and what it did."""

    symbol: str
    seconds: float
    flops: float = 0.0
    traffic_bytes: int = 0


@dataclass(frozen=True)
class CostModel:
    """Predictions for one target.

    calibration: figures of the target's machine, where there are any.
    threads: cores that a call may use; 0: all of the target's.
    measured: dispatches that were measured; they will answer before the constants do.
    """

    target: Target
    calibration: Calibration | None = None
    threads: int = 0
    measured: tuple[Measurement, ...] = ()

    def on(self, threads: int) -> "CostModel":
        """The same for a call on so many cores."""
        return replace(self, threads=threads)

    @property
    def basis(self) -> str:
        """What a prediction rests on, for whoever shows one."""
        by = self.calibration.label if self.calibration else self.target.calibrated_by
        return f"calibration {by}" if by else f"published figures of `{self.target.name}`"

    @property
    def cores(self) -> int:
        """The cores that a call may use."""
        return self.threads or self.target.cores

    @property
    def core_flops(self) -> float:
        """FLOP/s of f32 that one core is known, or taken, to reach."""
        if self.calibration is not None:
            return self.calibration.figures.core_flops.value
        share = 1.0 if self._is_measured else constant("published.flops")
        return share * self.target.peak_flops / self.target.cores

    @property
    def bandwidth(self) -> float:
        """Bytes/s of main memory."""
        if self.calibration is not None:
            return self.calibration.figures.bandwidth.value
        share = 1.0 if self._is_measured else constant("published.bandwidth")
        return share * self.target.peak_bandwidth

    @property
    def dispatch_seconds(self) -> float:
        """What a dispatch costs besides its work."""
        if self.calibration is not None:
            return self.calibration.figures.dispatch_seconds.value
        if self._is_measured:
            return self.target.dispatch_seconds
        return constant("dispatch.seconds")

    @property
    def _is_measured(self) -> bool:
        """GPUs' data sheets state what is reached; a CPU's nominal figures are not."""
        return bool(self.target.calibrated_by) or self.target.device != "local"

    def roofline(self, flops: float, traffic_bytes: int, share: float = 1.0) -> Cost:
        """So many operations at a share of the peak of all cores, or the traffic if longer."""
        computing = flops / (share * self.core_flops * self._busy(flops, traffic_bytes))
        seconds = max(computing, self.moving(traffic_bytes))
        return Cost(seconds, traffic_bytes=traffic_bytes, flops=flops)

    def kernel(self, family: str, flops: float, traffic_bytes: int) -> Cost:
        """One run of a generated kernel."""
        return self.roofline(flops, traffic_bytes, constant(f"kernel.{family}"))

    def dispatch(self, kind: str, flops: float, traffic_bytes: int) -> Cost:
        """One run of IREE's code; `kind` is contraction, convolution, reduction or pointwise."""
        return self.roofline(flops, traffic_bytes, constant(f"iree.{kind}"))

    def copy(self, traffic_bytes: int) -> Cost:
        """Bytes that are read and written, counted together."""
        return Cost(self.moving(traffic_bytes), traffic_bytes=traffic_bytes)

    def work(self, work: Work, start: int = 0) -> Cost:
        """The ops of a group from number `start` on, as one dispatch of IREE's code."""
        flops, traffic = totals(work, start)
        if start >= len(work.nodes):
            return Cost()
        first = _row(work.nodes[start], work)
        ratio, family = constant(f"iree.op.{first}"), _FAMILY_OF.get(first, "elementwise")
        kernel = self.kernel(family, flops, traffic)
        return replace(kernel, seconds=kernel.seconds / ratio)

    def part(self, flops: float, weighed_bytes: float, elements: float, dispatches: int) -> float:
        """Seconds of one part of an op that is cut: arithmetic, then traffic, then dispatches.

        weighed_bytes: traffic as `weighed` counts it. A part of few elements occupies few cores.
        """
        busy = min(1.0, elements / constant("chunk.tile") / self.target.cores)
        peak = constant("chunk.share") * self.target.peak_flops
        computing = flops / (peak * busy) if flops else 0.0
        moving = weighed_bytes / self.target.peak_bandwidth
        return computing + moving + dispatches * constant("chunk.dispatch_seconds")

    def weighed(self, nbytes: float) -> float:
        """The bytes of memory traffic that moving a value is worth: fewer where a cache holds it."""
        cache = self.target.l3_bytes or self.target.l2_bytes
        return nbytes if nbytes > cache else nbytes / constant("cache.speed")

    def moving(self, traffic_bytes: float) -> float:
        """Seconds of traffic, from the last cache where it fits there."""
        return self.weighed(traffic_bytes) / self.bandwidth

    def cores_for(self, flops: float, read_bytes: float) -> int:
        """How many workgroups a kernel should be cut into: one, or one for each core."""
        seconds = flops / (self.target.peak_flops / self.target.cores)
        reading = read_bytes / self.target.peak_bandwidth
        alone = seconds < constant("alone.flops_seconds")
        alone = alone and reading < constant("alone.read_seconds")
        return 1 if alone else self.target.cores

    def _busy(self, flops: float, traffic_bytes: float) -> int:
        return min(self.cores, self.cores_for(flops, traffic_bytes))


def totals(work: Work, start: int = 0) -> tuple[int, int]:
    """Operations of the ops from number `start` on, and bytes read from outside and written."""
    nodes = work.nodes[start:]
    if not nodes:
        return 0, 0
    flops = 0
    for node in nodes:
        inputs = [_nominal(work.type(v)) for v in node.operands]
        flops += OPS[node.name].flops(inputs, _nominal(node.type), **node.params)
    inside = {work.number_of(i) for i in range(start, len(work.nodes))}
    read = {v for n in nodes for v in n.operands} - inside
    traffic = sum(_nominal(work.type(v)).nbytes for v in read) + _nominal(nodes[-1].type).nbytes
    return flops, traffic


def _row(node: Node, work: Work) -> str:
    """The row of the table for a group that starts with `node`."""
    if node.name.startswith("reduce_"):
        rank, axes = work.type(node.operands[0]).rank, node.params["axes"]
        return "last_reduction" if rank - 1 in [a % rank for a in axes] else "leading_reduction"
    return node.name


def _nominal(type_: TensorType) -> TensorType:
    shape: Shape = tuple(NOMINAL_DIMENSION if d is None else d for d in type_.shape)
    return type_.with_shape(shape)
