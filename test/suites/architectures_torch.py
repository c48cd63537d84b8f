"""The suite `architectures-torch`: which architectures import from PyTorch and equal it.

    pyc-bench architectures-torch CATALOGUE --only bert,resnet50 --limit 1800

CATALOGUE (`catalogue.py`) gives (module, args, kwargs), random weights and small inputs; it needs
torch and whatever its models need. Each architecture runs in a process
of its own, with the batch and the length of token ids as dynamic dimensions; where that fails, with
the sizes as they are. Records of each:

    exported, imported      1, or 0 with `why`
    nodes, import_seconds   of the exported graph; without the export, of the processor
    compile_seconds
    difference              the largest difference as a part of torch's largest result, of all
                            results and sizes; `sizes` has the number of sizes that were compared

`why` of what fails is the first line of the error.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.report.suite import SuiteRun, option, suite
from pyc_mlir.util.children import python_command
from pyc_mlir.util.children import run as run_child
from suites.catalogue import OPTIONS, REASON_CHARACTERS, over_catalogue, read_catalogue, reason

SUITE = "architectures-torch"
_LIMIT_SECONDS = 600.0
# What the second and the third run have for the batch and for the length of token ids.
_BATCHES, _LENGTHS = (3, 1), (9, 24)
_UNITS = {
    "exported": "of 1", "imported": "of 1", "nodes": "nodes", "import_seconds": "s",
    "compile_seconds": "s", "difference": "of the largest",
}  # fmt: skip


@suite(
    SUITE,
    1,
    *OPTIONS,
    option("--limit", type=float, default=_LIMIT_SECONDS, metavar="S",
           help=f"for one architecture; default: {_LIMIT_SECONDS:.0f}"),
    option("--static", action="store_true", help="import without dynamic dimensions"),
)  # fmt: skip
def run(bench: SuiteRun) -> Iterator[Record]:
    """Compare architectures with random weights, imported from torch.export, with torch."""
    known = bench.options
    yield from over_catalogue(
        bench,
        lambda name, _: _records(name, _in_child(known.catalogue, name, known.static, known.limit)),
    )


def _records(name: str, facts: dict[str, Any]) -> list[Record]:
    why = {"why": facts["why"]} if facts.get("why") else {}
    details = {**why, "sizes": facts.get("sizes", 0), "dynamic": facts.get("dynamic", [])}
    return [
        record(name, "pyc", metric, unit, facts[metric], **details)
        for metric, unit in _UNITS.items()
        if metric in facts
    ]


def _in_child(catalogue: Path, name: str, static: bool, limit: float) -> dict[str, Any]:
    """Run a process of its own and return its findings, a crash or a timeout among them."""
    boot = "from suites.architectures_torch import main; main()"
    command = python_command(boot, str(catalogue), name, *(["--static"] if static else []))
    try:
        done = run_child(command, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"exported": 0, "why": f"not done after {limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last_line = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"exported": 0, "why": last_line[0][:REASON_CHARACTERS]}
    return json.loads(lines[-1])


def measured(catalogue: Path, name: str, dynamic: bool) -> dict[str, Any]:
    """Return the facts of one architecture, as far as it comes."""
    import torch  # pyright: ignore[reportMissingImports]

    warnings.filterwarnings("ignore")
    make = read_catalogue(catalogue)[name]
    torch.manual_seed(0)
    module, args, kwargs = make()
    kinds = [True, False] if dynamic else [False]
    facts: dict[str, Any] = {}
    for by_name in kinds:
        facts = _tried(module, args, kwargs, by_name)
        if "difference" in facts:
            return facts
    return facts


def _tried(module: Any, args: Any, kwargs: Any, dynamic: bool) -> dict[str, Any]:
    """Export, import, compile, compare; what was found until something failed, and why."""
    from pyc_mlir.frontends.torch.export import from_torch
    from pyc_mlir.frontends.torch.importer import import_torch
    from pyc_mlir.torch.program import TorchProgram

    facts: dict[str, Any] = {"exported": 0}
    try:
        given = tuple(_named(a) for a in args) if dynamic else args
        model = from_torch(module, given, kwargs)
        facts["exported"], facts["imported"] = 1, 0
        facts["dynamic"] = sorted(set(model.names.values()))
        facts["nodes"] = sum(n.op == "call_function" for n in model.program.graph.nodes)
        began = time.thread_time()
        import_torch(model)
        facts["import_seconds"], facts["imported"] = time.thread_time() - began, 1
        from pyc_mlir import api

        began = time.perf_counter()
        program = TorchProgram(model, api.compile(model, cache=False))
        facts["compile_seconds"] = time.perf_counter() - began
        runs = [args, *(_resized(args, i) for i in (0, 1))] if facts["dynamic"] else [args]
        worst = [_difference(module, program, a, kwargs) for a in runs]
        facts["difference"], facts["sizes"] = max(worst), len(worst)
    except Exception as error:  # noqa: BLE001  (whatever a model or torch raises is the finding)
        facts["why"] = reason(error)
    return facts


def _named(value: Any) -> Any:
    """Return a spec with the batch named, and the length of token ids."""
    import torch  # pyright: ignore[reportMissingImports]

    from pyc_mlir.frontends.python.specs import TensorSpec

    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    dims: list[Any] = list(value.shape)
    dims[0] = "batch"
    if value.dim() == 2 and value.dtype == torch.int64:
        dims[1] = "length"
    return TensorSpec(value.dtype, *dims)


def _resized(args: Any, run: int) -> tuple[Any, ...]:
    """Return the arguments at other sizes of the named dimensions."""
    import torch  # pyright: ignore[reportMissingImports]

    out = []
    for value in args:
        if not isinstance(value, torch.Tensor) or not value.dim():
            out.append(value)
            continue
        shape = [_BATCHES[run], *value.shape[1:]]
        if value.dim() == 2 and value.dtype == torch.int64:
            shape[1] = _LENGTHS[run]
            out.append(torch.randint(0, max(1, int(value.max())), shape))
        else:
            out.append(torch.randn(shape, dtype=value.dtype))
    return tuple(out)


def _difference(module: Any, program: Any, args: Any, kwargs: Any) -> float:
    from pyc_mlir.torch.program import compare

    return compare(module, args, kwargs, program=program).worst


def main() -> None:
    """Print the facts of one architecture, as a process of its own."""
    print(json.dumps(measured(Path(sys.argv[1]), sys.argv[2], "--static" not in sys.argv)))
