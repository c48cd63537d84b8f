"""Measured peaks of this machine: FMA and copy bandwidth for a number of threads.

    python -m pyc_mlir.calibrate.peaks --threads 2      {"flops": ..., "bandwidth": ...}

The peak: one workgroup a thread, each with enough independent accumulators to hide the latency of
an FMA, in registers only. The bandwidth: each thread copies an array far larger than caches;
bytes read and written, without those that a write may fetch first.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np

from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.plain import compile_plain, plain_flags
from pyc_mlir.measure.processes import environment, hold_to
from pyc_mlir.runtime.device import Device, default_device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.util.children import run as run_child

# Two FMA units of four or five cycles need ten; AVX2 has sixteen registers.
ACCUMULATORS = 12
_ROUNDS = 7
_COPIED_BYTES = 128 << 20
_F32 = 4


@dataclass(frozen=True)
class Peaks:
    """FLOP/s of f32 and bytes/s of main memory, the best of several rounds."""

    flops: float
    bandwidth: float


def in_own_process(threads: int, iterations: int, environ: dict[str, str]) -> Peaks:
    """Calibrate with that many threads. Raises PycError (RUNTIME_FAILED)."""
    command = [sys.executable, "-m", __name__, f"--threads={threads}"]
    command += [f"--iterations={iterations}"]
    done = run_child(command, stderr=None, env=environment(threads, environ))
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"calibration with {threads} threads: expected the process to finish, got status "
            f"{done.returncode}; its message stands above",
        )
    return Peaks(**json.loads(done.stdout))


def fma_program(lanes: int, groups: int, iterations: int, dispatches: int = 1) -> str:
    """Write a program of `groups` workgroups that do nothing but FMAs on vectors of f32.

    lanes: of the vectors. Several `dispatches` run one after another, each on the one before it.
    """
    vector, every = f"vector<{lanes}xf32>", range(ACCUMULATORS)
    names = ", ".join(f"%a{i} = %init" for i in every)
    kinds = ", ".join([vector] * ACCUMULATORS)
    fmas = "\n".join(f"%b{i} = vector.fma %a{i}, %scale, %shift : {vector}" for i in every)
    sums = "\n".join(
        f"%s{i} = arith.addf {f'%s{i - 1}' if i else '%init'}, %r#{i} : {vector}" for i in every
    )
    size = lanes * groups
    kind = f"(tensor<{size}xf32>) -> tensor<{size}xf32>"
    calls = "\n".join(
        f"  %y{n + 1} = flow.dispatch @fma_exe::@fma(%y{n}) : {kind}" for n in range(dispatches)
    )
    return f"""
stream.executable private @fma_exe {{
  stream.executable.export public @fma workgroups() -> (index, index, index) {{
    %one = arith.constant 1 : index
    %groups = arith.constant {groups} : index
    stream.return %groups, %one, %one : index, index, index
  }}
  builtin.module {{
    func.func @fma(%in: !stream.binding, %out: !stream.binding) attributes {{
        translation_info = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>}} {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %lanes = arith.constant {lanes} : index
      %count = arith.constant {iterations} : index
      %from = stream.binding.subspan %in[%zero] : !stream.binding -> memref<{size}xf32>
      %to = stream.binding.subspan %out[%zero] : !stream.binding -> memref<{size}xf32>
      %group = stream.dispatch.workgroup.id[0] : index
      %at = arith.muli %group, %lanes : index
      %init = vector.load %from[%at] : memref<{size}xf32>, {vector}
      %scale = arith.constant dense<0.5> : {vector}
      %shift = arith.constant dense<0.25> : {vector}
      %r:{ACCUMULATORS} = scf.for %i = %zero to %count step %one
          iter_args({names}) -> ({kinds}) {{
        {fmas}
        scf.yield {", ".join(f"%b{i}" for i in every)} : {kinds}
      }}
      {sums}
      vector.store %s{ACCUMULATORS - 1}, %to[%at] : memref<{size}xf32>, {vector}
      return
    }}
  }}
}}
func.func public @main(%y0: tensor<{size}xf32>) -> tensor<{size}xf32> {{
{calls}
  return %y{dispatches} : tensor<{size}xf32>
}}
"""


@dataclass(frozen=True)
class PeakProbe:
    """A call to be timed, and how much it does: operations of f32, or bytes read and written."""

    call: Callable[[], object]
    amount: float


def fma_probes(
    devices: Iterable[Device], groups: int, iterations: int, dispatches: int = 1
) -> list[PeakProbe]:
    """Compile the FMA program once for each device; its amount is in operations."""
    from pyc_mlir.runtime.array import to_device

    options = make_options()
    lanes = options.target.vector_bytes // _F32
    text = fma_program(lanes, groups, iterations, dispatches)
    vmfb = compile_plain(text.encode(), plain_flags(options.target))
    shape, amount = (lanes * groups,), 2 * ACCUMULATORS * lanes * groups * iterations * dispatches
    result = ResultType(np.dtype(np.float32), shape)
    probes = []
    for device in devices:
        entry = Executable(vmfb, device).entry("main", [result])
        array = to_device(np.zeros(shape, np.float32), device)
        probes.append(PeakProbe(entry.bare_call([array]), amount))
    return probes


@contextmanager
def copy_probe(threads: int, total_bytes: int) -> Iterator[PeakProbe]:
    """Yield copies of `total_bytes` in all by `threads` threads; its amount is the bytes moved."""
    shape = total_bytes // threads // 8
    pairs = [(np.ones(shape), np.zeros(shape)) for _ in range(threads)]
    amount = 2 * 8 * shape * threads
    if threads == 1:
        yield PeakProbe(lambda: np.copyto(pairs[0][1], pairs[0][0]), amount)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield PeakProbe(lambda: list(pool.map(lambda p: np.copyto(p[1], p[0]), pairs)), amount)


def measure_flops(threads: int, iterations: int) -> float:
    """FLOP/s of FMAs on `threads` threads."""
    (probe,) = fma_probes([default_device(threads)], threads, iterations)
    return probe.amount / _least_seconds(probe.call)


def measure_bandwidth(threads: int, total_bytes: int) -> float:
    """Return the bytes read and written per second by copies on `threads` threads."""
    with copy_probe(threads, total_bytes) as probe:
        return probe.amount / _least_seconds(probe.call)


def _least_seconds(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main(arguments: Sequence[str]) -> int:
    """Run the calibrating process: peaks as JSON on stdout."""
    parser = argparse.ArgumentParser(__name__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    known = parser.parse_args(arguments)
    hold_to(known.threads)
    size = min(_COPIED_BYTES, known.iterations * 128)
    flops = measure_flops(known.threads, known.iterations)
    print(json.dumps(asdict(Peaks(flops, measure_bandwidth(known.threads, size)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
