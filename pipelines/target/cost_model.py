"""The one cost model: predicted seconds of kernels, of IREE's code, of dispatches and of copies.

Comes in: a target, or a target and the calibration of its machine. Goes out: a `Cost` for each
question. All times follow the roofline (Williams et al., 2009): arithmetic at a share of the
measured peak, or traffic at the bandwidth of the cache that holds it, whichever takes longer. The
shares are those of cost_constants.py, with their origin; docs/design-notes/cost-model.md states the
error that remains.
"""

from dataclasses import dataclass, replace

from pyc_mlir.dialects.opdef import OPS, Trait, has
from pyc_mlir.dialects.types import Shape, TensorType
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_constants import constant
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, WorkOp


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
        """Return the same for a call on so many cores."""
        return replace(self, threads=threads)

    @property
    def basis(self) -> str:
        """The basis of a prediction, for reports."""
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
        """The seconds of a dispatch besides its work."""
        if self.calibration is not None:
            return self.calibration.figures.dispatch_seconds.value
        if self._is_measured:
            return self.target.dispatch_seconds
        return constant("dispatch.seconds")

    @property
    def _is_measured(self) -> bool:
        """True for figures that are reached: GPUs' data sheets state those, a CPU's do not."""
        return bool(self.target.calibrated_by) or self.target.device != "local"

    def roofline(self, flops: float, traffic_bytes: int, share: float = 1.0) -> Cost:
        """Return the time of operations at a share of all cores' peak, or the traffic if longer."""
        busy = min(self.cores, self.cores_for(flops, traffic_bytes))
        computing = flops / (share * self.core_flops * busy)
        seconds = max(computing, self.moving(traffic_bytes))
        return Cost(seconds, traffic_bytes=traffic_bytes, flops=flops)

    def kernel(self, family: str, flops: float, traffic_bytes: int) -> Cost:
        """Return the cost of one run of a generated kernel."""
        return self.roofline(flops, traffic_bytes, constant(f"kernel.{family}"))

    def dispatch(self, kind: str, flops: float, traffic_bytes: int) -> Cost:
        """Return the cost of one run of IREE's code; `kind` names a row `iree.*` of the table."""
        return self.roofline(flops, traffic_bytes, constant(f"iree.{kind}"))

    def copy(self, traffic_bytes: int) -> Cost:
        """Return the cost of bytes that are read and written, counted together."""
        return Cost(self.moving(traffic_bytes), traffic_bytes=traffic_bytes)

    def work(self, work: Work, start: int = 0) -> Cost:
        """Price the ops of a group from number `start` on, as one dispatch of IREE's code."""
        flops, traffic = totals(work, start)
        if start >= len(work.nodes):
            return Cost()
        if (kind := _window_kind(work.nodes[start], work)) is not None:
            return self.dispatch(kind, flops, traffic)
        first = work.nodes[start]
        kernel = self.kernel(OPS[first.name].cost_family, flops, traffic)
        return replace(kernel, seconds=kernel.seconds / constant(f"iree.op.{_row(first, work)}"))

    def part(self, flops: float, weighed_bytes: float, elements: float, dispatches: int) -> float:
        """Return the seconds of one part of a cut op: arithmetic, then traffic, then dispatches.

        weighed_bytes: traffic as `weighed` counts it. A part of few elements occupies few cores.
        """
        busy = min(1.0, elements / constant("chunk.tile") / self.target.cores)
        peak = constant("chunk.share") * self.target.peak_flops
        computing = flops / (peak * busy) if flops else 0.0
        moving = weighed_bytes / self.target.peak_bandwidth
        return computing + moving + dispatches * constant("chunk.dispatch_seconds")

    def weighed(self, nbytes: float) -> float:
        """Weigh the bytes of a value for `part`: fewer where a cache holds it."""
        cache = self.target.l3_bytes or self.target.l2_bytes
        return nbytes if nbytes > cache else nbytes / constant("chunk.cache")

    def moving(self, traffic_bytes: float) -> float:
        """Return the seconds of traffic, from the smallest cache that holds it."""
        speed = 1.0
        if traffic_bytes <= constant("cache.l2_reach") * self.target.l2_bytes:
            speed = constant("cache.l2")
        elif traffic_bytes <= self.target.l3_bytes:
            speed = constant("cache.l3")
        return traffic_bytes / (speed * self.bandwidth)

    def cores_for(self, flops: float, read_bytes: float) -> int:
        """Return the workgroups that a kernel should be cut into: one, or one for each core."""
        seconds = flops / (self.target.peak_flops / self.target.cores)
        reading = read_bytes / self.target.peak_bandwidth
        return 1 if max(seconds, reading) < constant("fork.worth_seconds") else self.target.cores


def totals(work: Work, start: int = 0) -> tuple[int, int]:
    """Return operations of the ops from number `start` on, and bytes read and written outside."""
    nodes = work.nodes[start:]
    if not nodes:
        return 0, 0
    flops, read = 0, dict[int, int]()
    inside = {work.number_of(i) for i in range(start, len(work.nodes))}
    for node in nodes:
        inputs, out = [_nominal(work.type(v)) for v in node.operands], _nominal(node.type)
        flops += OPS[node.name].flops(inputs, out, **node.params)
        # A gather reads the rows that it takes, not the table.
        most = OPS[node.name].traffic(inputs, out, **node.params) - out.nbytes
        for value, type_ in zip(node.operands, inputs, strict=True):
            if value not in inside:
                read[value] = max(read.get(value, 0), min(type_.nbytes, most))
    return flops, sum(read.values()) + _nominal(nodes[-1].type).nbytes


def _window_kind(node: WorkOp, work: Work) -> str | None:
    if not has(node.name, Trait.WINDOW):
        return None
    if len(node.operands) == 1:
        return "pooling"
    if node.params["groups"] > 1:
        return "convolution.grouped"
    shape = work.type(node.operands[1]).shape
    window = shape[2:] if node.params["layout"] == "NCHW" else shape[:2]
    if max(node.params["strides"]) > 1:
        return "convolution.strided" if set(window) != {1} else "strided"
    return "convolution" if set(window) != {1} else "contraction"


def _row(node: WorkOp, work: Work) -> str:
    if "axes" in node.params and has(node.name, Trait.REDUCES):
        rank, axes = work.type(node.operands[0]).rank, node.params["axes"]
        return "last_reduction" if rank - 1 in [a % rank for a in axes] else "leading_reduction"
    return node.name


def _nominal(type_: TensorType) -> TensorType:
    shape: Shape = tuple(NOMINAL_DIMENSION if d is None else d for d in type_.shape)
    return type_.with_shape(shape)
