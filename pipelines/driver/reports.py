"""The reports of a pipeline run in mlir-opt's layout: timing, statistics, remarks, pass lists."""

import re
from collections.abc import Mapping

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.driver.base import options_of
from pyc_mlir.pipelines.driver.native_passes import describe
from pyc_mlir.pipelines.driver.options import describe as describe_type
from pyc_mlir.pipelines.driver.options import option_types, write_value
from pyc_mlir.pipelines.driver.pass_manager import RunReport
from pyc_mlir.pipelines.driver.registry import NATIVE_PASSES, PASSES
from pyc_mlir.pipelines.text.diagnostics import Diagnostic, collect

_AVAILABLE = re.compile(r"Available dialects: ([\w ,*()]*?) \(\* corr")
_RULE = "===" + "-" * 73 + "==="


def _titled(title: str) -> list[str]:
    return [_RULE, f"{f'... {title} ...':^79}".rstrip(), _RULE]


def timing(seconds: Mapping[str, float]) -> str:
    """Write the wall time per name, and the total."""
    total = sum(seconds.values())
    lines = _titled("Execution time report")
    lines += [
        f"  Total Execution Time: {total:.4f} seconds",
        "",
        "  ----Wall Time----  ----Name----",
    ]
    for name, spent in [*seconds.items(), ("Total", total)]:
        share = 100 * spent / total if total else 0.0
        lines.append(f"  {spent:8.4f} ({share:5.1f}%)  {name}")
    return "\n".join(lines) + "\n"


def statistics(report: RunReport) -> str:
    """List what each PyC pass counted (the wheel is built without native statistics)."""
    lines = _titled("Pass statistics report")
    for name, counts in report.statistics.items():
        lines.append(f"'{name}' Pass")
        lines += [f"  (S) {count:6} {what}" for what, count in counts.items()]
    return "\n".join(lines) + "\n"


def remark(decision: Decision) -> Diagnostic:
    """Write a decision as a remark: what was chosen, over what, and by whom."""
    others = [a.name for a in decision.alternatives if a.name != decision.chosen]
    over = f" over {', '.join(others)}" if others else ""
    message = f"[{decision.site.key}] chose {decision.chosen}{over} ({decision.decided_by})"
    return Diagnostic("remark", message)


def pass_list(context: ir.Context) -> str:
    """List every pass: PyC's with help and defaults of options, the wheel's with defaults."""
    lines = ["PyC passes (on builtin.module):"]
    for pass_class in PASSES.values():
        summary, *_ = (pass_class.__doc__ or "").strip().split("\n")
        lines += [f"  --{pass_class.name}", f"      {summary}"]
        kinds = option_types(pass_class)
        for spec, name in options_of(pass_class):
            text = f"{spec.metadata.get('help', '')} ({describe_type(kinds[spec.name])})"
            lines.append(f"      {name}={write_value(spec.default)}: {text}")
    lines += ["", "Native passes (with the op that they run on):"]
    for name in sorted(NATIVE_PASSES):
        native = describe(name, context)
        if native is not None:
            lines.append(f"  --{name} ({native.anchor})")
            lines += [f"      {o}={default}" for o, default in native.options.items()]
    return "\n".join(lines) + "\n"


def dialect_list(context: ir.Context) -> str:
    """Return the dialects that a module may use: the parser names them at an unknown one."""
    notes: list[str] = []
    with collect(context, lambda item: notes.extend(n.message for n in item.notes)):
        try:
            ir.Module.parse("unknown.op", context)
        except ir.MLIRError:
            found = _AVAILABLE.search("".join(notes))
    names = re.findall(r"\w+", found[1]) if found else []
    return f"Available Dialects: {', '.join(sorted(names))}\n"
