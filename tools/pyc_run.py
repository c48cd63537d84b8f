"""`pyc-run`: run a program that `pyc-compile` wrote. Needs no compiler, only IREE's runtime."""

import argparse
import io
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyc_mlir.artifact.signature import SignatureEntry, flat
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import dtype_name
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.pipelines.choices.log import write_log
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli import run_inputs

if TYPE_CHECKING:
    from pyc_mlir.runtime.events import ProgramStats
    from pyc_mlir.runtime.program import Program

TOOL = "pyc-run"
# Calls before the ones that --repeat times: caches and pools fill.
_WARMUP = 3
# Endings of what is compiled first.
_MODELS = (".onnx", ".mlir", ".mlirbc", ".py")
_EPILOG = f"""\
inputs (VALUE of --input), in the program's order unless named:
{(run_inputs.__doc__ or "").partition(chr(10) * 2)[2].rstrip()}

examples:
  pyc-run model.vmfb --input image.npy
  pyc-run model.vmfb --input x=2x784xf32=@seed:0 --output results.npz
  pyc-run model.vmfb --input 1x784xf32=0.5 --repeat 1000 --device local-sync
  pyc-run model.vmfb --input x=2x784xf32=@seed:0 --profile trace.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused, 2 usage, 70 a fault of ours)."""
    return cli.run_tool(TOOL, lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    flags = make_parser().parse_args(argv)
    if flags.capsule is not None:
        return _replayed(flags)
    if flags.program is None:
        raise cli.usage_error(TOOL, "expected PROGRAM.vmfb or --capsule")
    if flags.output is not None and not flags.output.endswith((".npz", ".npy")):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--output: expected FILE.npz or FILE.npy, got {flags.output!r}",
        )
    if flags.output is not None:
        require_writable(flags.output)
    if flags.profile:
        require_writable(flags.profile)
    cli.require_own_log(TOOL, flags.log, (flags.program, flags.output))
    program = _loaded(flags)
    try:
        return _called(flags, program)
    finally:
        if flags.log is not None:
            write_log(program.log(), flags.log)


def _replayed(flags: argparse.Namespace) -> int:
    """Print what becomes of a capsule here; 1 where the fault is there again."""
    from pyc_mlir.tools.cli.capsule_run import replay_capsule

    text, there = replay_capsule(flags.capsule, make_device(flags))
    print(text, end="")
    return cli.REFUSED if there else cli.OK


def _loaded(flags: argparse.Namespace) -> "Program":
    """Load the program on its device; a refusal is in the log, too."""
    # Loading IREE takes a moment, which --help need not wait for.
    from pyc_mlir.runtime.events import load_refused
    from pyc_mlir.runtime.load import load

    try:
        _require_program(flags.program)
        return load(flags.program, make_device(flags))
    except Exception as error:
        if flags.log is not None:
            # What refused the load is what the user has to know of, not also a bad log.
            with suppress(PycError):
                write_log((load_refused(cli.refusal(error)),), flags.log)
        raise


def _require_program(path: str) -> None:
    """Raise PycError (BAD_ARTIFACT) for the file of a model."""
    if path.endswith(_MODELS):
        raise PycError(
            ReasonCode.BAD_ARTIFACT,
            where=path,
            expected="a program (.vmfb)",
            got="a model",
            remedy=f"compile it with `pyc-compile {path} -o model.vmfb`",
        )


def _called(flags: argparse.Namespace, program: "Program") -> int:
    """Call the program as the flags ask."""
    from pyc_mlir.runtime.array import to_device
    from pyc_mlir.runtime.pool import POOL
    from pyc_mlir.runtime.program import serving

    try:
        arrays, drawn = run_inputs.inputs_or_drawn(flags.input, program.signature)
    except PycError as error:
        serving(program).log.refused(error)
        raise
    if drawn:
        print(f"{TOOL}: no --input: random numbers, as by {drawn}", file=sys.stderr)
    values = flat(program(*arrays))
    named = dict(zip(result_names(program.signature.outputs), values, strict=True))
    if flags.output is None:
        print(shown(named), end="")
    else:
        _save(Path(flags.output), named)
    if flags.repeat is not None:
        placed = [to_device(a, program.device) for a in arrays]
        print(latency(lambda: program(*placed), flags.repeat))
    if flags.profile is not None:
        profile = program.profile(*arrays, calls=flags.repeat, calibration=flags.calibration)
        print(profile, end="")
        print("".join(f"{name:<14} {text}\n" for name, text in _served(program.stats())), end="")
        if flags.profile:
            profile.trace(flags.profile)
    if flags.stats:
        print(statistics(program.stats(), program, arrays), end="")
        if program.device.kind == "local" and program.device.threads != 1:
            print(f"{'threads':<14} {program.device.threads}: {POOL.statistics()}")
    return cli.OK


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = cli.Parser(TOOL, "Run a compiled program.", _EPILOG)
    parser.usage = "%(prog)s PROGRAM.vmfb [--input ...] [options]"
    parser.add_argument(
        "program", nargs="?", metavar="PROGRAM", help="a .vmfb file from pyc-compile"
    )
    parser.add_argument(
        "--capsule", metavar="FILE", help="call the program of a service's wrong answer again"
    )
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]VALUE", help="an input; see below"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write the results to FILE.npz, or one result to FILE.npy"
    )
    parser.add_argument("--repeat", type=cli.positive, metavar="N", help="time N further calls")
    parser.add_argument(
        "--profile",
        nargs="?",
        const="",
        metavar="FILE",
        help="print the time of each dispatch, over --repeat calls; FILE is written as a trace for "
        "ui.perfetto.dev and `pyc-explain --profile`",
    )
    parser.add_argument(
        "--calibration", metavar="FILE", help="for --profile: figures from `pyc-doctor --calibrate`"
    )
    parser.add_argument("--stats", action="store_true", help="print calls, times and memory")
    parser.add_argument(
        "--log", metavar="LOG", help="write events to this file as JSON lines, also if a call fails"
    )
    parser.add_argument(
        "--device",
        metavar="KIND",
        help="kind: local, local-sync, local-task, cuda, vulkan, hip; default: the program's",
    )
    parser.add_argument(
        "--threads",
        type=cli.positive,
        metavar="N",
        help="threads of a call on local or local-task; default: one per core, or PYC_THREADS",
    )
    parser.add_argument(
        "--allocator",
        metavar="NAME",
        help="the allocator: caching keeps freed memory for the next call",
    )
    return parser


def make_device(flags: argparse.Namespace) -> Any:
    """Make the device that the flags ask for; None leaves the choice to the program."""
    from pyc_mlir.runtime.device import Device

    if (flags.device, flags.threads, flags.allocator) == (None, None, None):
        return None
    return Device(flags.device or "local", flags.threads, flags.allocator)


def result_names(outputs: Sequence[SignatureEntry]) -> list[str]:
    """Return different names of the results: a name that repeats gets its position."""
    names = [a.name for a in outputs]
    return [n if names.count(n) == 1 and n else f"{n or 'result'}{i}" for i, n in enumerate(names)]


def shown(results: dict[str, np.ndarray]) -> str:
    """Format results: name, type, and the elements, the middle of large arrays left out."""
    lines = []
    for name, array in results.items():
        type_ = "x".join([*map(str, array.shape), dtype_name(array.dtype)])
        text = np.array2string(array, threshold=200, edgeitems=3, max_line_width=100)
        lines.append(f"{name}: {type_}\n{text}\n")
    return "".join(lines)


def _save(path: Path, results: dict[str, np.ndarray]) -> None:
    data = io.BytesIO()
    if path.suffix == ".npz":
        # Not `np.savez`: results may have the names of its parameters.
        with zipfile.ZipFile(data, "w") as archive:
            for name, array in results.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    elif len(results) == 1:
        np.save(data, next(iter(results.values())), allow_pickle=False)
    else:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--output {path}: expected FILE.npz for {len(results)} results, got an .npy file",
        )
    write_file(path, data.getbuffer())


def latency(
    call: Callable[[], object], calls: int, clock: Callable[[], float] = time.perf_counter
) -> str:
    """Time `calls` calls one by one: median, 10th and 90th percentile."""
    from pyc_mlir.measure.interleave import Spread
    from pyc_mlir.util.units import quantity

    for _ in range(_WARMUP):
        call()
    seconds = []
    for _ in range(calls):
        began = clock()
        call()
        seconds.append(clock() - began)
    spread = Spread.of(seconds)
    median, p10, p90 = (quantity(v, "s") for v in (spread.median, spread.p10, spread.p90))
    return f"latency of {calls} calls, arrays on the device: median {median}, p10 {p10}, p90 {p90}"


def _served(stats: "ProgramStats") -> list[tuple[str, str]]:
    """Return which plan served how many calls, where there are several, and what a selector did."""
    rows = []
    if len(stats.served) > 1:
        counts = ", ".join(f"{name}: {calls}" for name, calls in stats.served.items())
        rows.append(("calls by plan", counts))
    for route in stats.routes:
        serving = ", ".join(f"{context}: {arm}" for context, arm in route.serving.items())
        tried = f"{route.tries} tries lost {route.lost_seconds:.3g} s"
        rows.append(("selector", f"{route.route}: {serving}; {tried}"))
    return rows


def statistics(stats: "ProgramStats", program: "Program", arrays: Sequence[np.ndarray] = ()) -> str:
    """Write the program's statistics, a fact a line; the memory is that of a call with `arrays`."""
    from pyc_mlir.tools.cli.sizes import ChosenSizes
    from pyc_mlir.util.units import quantity

    pairs = zip(program.signature.inputs, arrays, strict=False)
    dims = {name: a.shape[i] for entry, a in pairs for i, name in entry.dynamic.items()}
    sizes, contract = ChosenSizes(program.signature, dims), program.artifact.manifest.contract
    memory = sizes.account(program.artifact).described(contract.max_concurrency)
    rows = [
        ("device", repr(program.device)),
        ("calls", str(stats.calls)),
        ("time in calls", quantity(stats.seconds_total, "s")),
        ("program", quantity(stats.artifact_bytes, "B")),
        ("memory", f"{memory}; for {sizes}" if dims else memory),
        *([] if (time := program.artifact.prediction) is None else [("prediction", str(time))]),
    ]
    if program.device.kind != "local-task":  # whose statistics leave out the transients
        counted = stats.device_memory
        peak, live = quantity(counted.peak_bytes, "B"), quantity(counted.live_bytes, "B")
        rows.append(("on the device", f"{peak} at the peak, {live} now, without mapped constants"))
    rows += _served(stats)
    rows += [("runtime", stats.other_runtime)] if stats.other_runtime else []
    rows += [("contract", str(clause)) for clause in stats.contract.clauses]
    return "".join(f"{name:<14} {value}\n" for name, value in rows)


if __name__ == "__main__":
    sys.exit(main())
