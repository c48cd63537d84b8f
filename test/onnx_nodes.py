"""Run every node case of the onnx wheel and store what becomes of it in docs/results.

    python test/onnx_nodes.py [--peer]

Each case is imported and interpreted twice: as it is, and with dynamic sizes. Those that PyC
refuses are counted by reason; `--peer` also runs those through plain IREE, each in a process of its
own, which some of them end. Cases of element types that PyC lacks are left out of that.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report, record

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "test" / "py"), str(ROOT / "test" / "py" / "support")]
import onnx_cases as given  # noqa: E402  (the path is set above)

PEER_SECONDS = 120
PLAIN = "as they are"
DYNAMIC = "with dynamic sizes"
# Element types are many, the reason is one.
_TYPES = {
    "STRING": "texts",
    "FLOAT8": "floats of 8 bits",
    "FLOAT4": "floats of 4 bits",
    "INT4": "integers of 2 and 4 bits",
    "INT2": "integers of 2 and 4 bits",
}


def outcome(case: Any, context: Any, dynamic: bool) -> tuple[str, str]:
    """`equal`, `wrong`, `refused`, ...; and for what is refused the reason, in a few words."""
    found = given.tensors(case)
    if isinstance(found, str):
        return found, ""
    model, inputs, wanted = found
    try:
        model = given.with_dynamic_sizes(model) if dynamic else model
        module, rest = given.import_case(model, inputs, context)
    except PycError as error:
        return "refused", reason(error)
    answers = given.counted(module, interpret(module, rest))
    pairs = zip(answers, wanted, strict=True)
    return "equal" if all(given.close(a, w, case) for a, w in pairs) else "wrong", ""


def reason(error: PycError) -> str:
    """The code of a refusal, and the op or the element type because of which it is."""
    for name, reported in _TYPES.items():
        if f"element type {name}" in str(error) or f"element type U{name}" in str(error):
            return f"{error.code.name}: {reported}"
    findings = getattr(error, "findings", ())
    if not findings:
        return f"{error.code.name}: the model or an input of it"
    first = findings[0]
    return f"{first.code.name}: {first.op}"


def by_reason(refused: Mapping[str, str], peer: Mapping[str, str]) -> list[Record]:
    """A row for each reason: how many cases, which ones, and how many plain IREE computes."""
    cases: dict[str, list[str]] = defaultdict(list)
    for name, why in sorted(refused.items()):
        cases[why].append(name.removeprefix("test_"))
    rows = []
    for why, names in sorted(cases.items(), key=lambda item: (-len(item[1]), item[0])):
        rows.append(record(why, "pyc", "refused", "cases", len(names), cases=names))
        right = [n for n in names if peer.get(f"test_{n}") == "equal"]
        if peer and _tried(why):
            rows.append(record(why, "plain IREE", "refused", "cases", len(names) - len(right)))
            rows[-1]["equal"] = right
    return rows


def _tried(why: str) -> bool:
    return not why.startswith("UNSUPPORTED_DTYPE")


def by_peer(name: str) -> str:
    """What plain IREE makes of a case: `equal`, or how it ends."""
    command = [sys.executable, __file__, "--case", name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PEER_SECONDS)
    except subprocess.TimeoutExpired:
        return "too long"
    last = run.stdout.strip().splitlines()[-1:]
    return last[0] if last and run.returncode == 0 else f"ended by {run.returncode}"


def peer_case(name: str) -> str:
    """One case by IREE's ONNX importer, compiler and runtime, in this process."""
    import importlib
    import tempfile

    import onnx

    compiler: Any = importlib.import_module("iree.compiler.tools")
    runtime: Any = importlib.import_module("iree.runtime")

    case = next(c for c in given.cases() if c.name == name)
    found = given.tensors(case)
    if isinstance(found, str):
        return found
    model, inputs, wanted = found
    rest = given.freeze_small(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        source, text = Path(folder, "m.onnx"), Path(folder, "m.mlir")
        onnx.save(model, source)
        script = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source)]
        if subprocess.run([*script, "-o", str(text)], capture_output=True).returncode:
            return "not imported"
        try:
            code = compiler.compile_file(str(text), target_backends=["llvm-cpu"])
        except compiler.CompilerToolError:
            return "not compiled"
    program = runtime.load_vm_flatbuffer(code, driver="local-task")
    answers = program[model.graph.name](*rest)
    answers = answers if isinstance(answers, list | tuple) else [answers]
    pairs = zip([a.to_host() for a in answers], wanted, strict=True)
    return "equal" if all(given.close(a, w, case) for a, w in pairs) else "wrong"


def summary(found: Mapping[str, Mapping[str, tuple[str, str]]], peer: Mapping[str, str]) -> Report:
    """Counts of both runs, and a row for each reason of a refusal of cases as they are."""
    records = []
    for sizes, cases in found.items():
        outcomes: dict[str, int] = defaultdict(int)
        for reported, _ in cases.values():
            outcomes[reported] += 1
        records += [record(sizes, "pyc", o, "cases", n) for o, n in sorted(outcomes.items())]
    refused = {name: why for name, (reported, why) in found[PLAIN].items() if reported == "refused"}
    return Report("onnx-nodes", probe(), {}, [*records, *by_reason(refused, peer)])


def main(arguments: Sequence[str]) -> int:
    """Store the report; 1 when a case is wrong."""
    if arguments[:1] == ["--case"]:
        print(peer_case(arguments[1]))
        return 0
    context = new_context()
    found = {
        sizes: {c.name: outcome(c, context, sizes == DYNAMIC) for c in given.cases()}
        for sizes in (PLAIN, DYNAMIC)
    }
    peer = {}
    if "--peer" in arguments:
        requested = [
            n
            for n, (reported, why) in found[PLAIN].items()
            if reported == "refused" and _tried(why)
        ]
        peer = {name: by_peer(name) for name in requested}
    summary(found, peer).save(ROOT / "docs" / "results" / "onnx-nodes.json")
    wrong = [
        name
        for cases in found.values()
        for name, (reported, _) in cases.items()
        if reported == "wrong"
    ]
    print("\n".join(["wrong:", *wrong]) if wrong else "none is wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
