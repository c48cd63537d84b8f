"""docs/results.md, an index, and docs/results/<goal>.md, one page per goal, from stored reports.

A goal is a question that users ask; its page holds the newest stored run of each of its suites. A
report that belongs to no goal of `GOALS` gets a page of its own name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report.show import markdown


@dataclass(frozen=True)
class Goal:
    """One page: its title, and the stems of the reports that it shows, in order."""

    title: str
    reports: tuple[str, ...]


GOALS: Mapping[str, Goal] = {
    "latency": Goal(
        "latency of CPU workloads against the peers",
        ("latency", "latency-again", "latency-again-2"),
    ),
    "networks": Goal("real networks with random weights against the peers", ("zoo", "zoo-avx2")),
    "dynamic-sizes": Goal(
        "networks of dynamic sizes", ("dynamic-zoo", "dynamic-zoo-again", "dynamic-quantizers")
    ),
    "quantized": Goal(
        "quantized models and models in half types against the peers", ("quantized",)
    ),
    "layers": Goal(
        "convolution layers of ResNet-50 and MobileNet-V2 against the peak", ("layers",)
    ),
    "architectures": Goal(
        "architectures of PyTorch and JAX against their frameworks",
        ("architectures-torch", "architectures-jax"),
    ),
    "operators": Goal(
        "PyTorch's own operator samples and random modules", ("torch-operators", "torch-random")
    ),
    "products": Goal("share of the FMA peak of products with an epilogue", ("gemm",)),
    "memory": Goal(
        "memory of a call against plain IREE and XLA", ("memory", "account", "transients-jax")
    ),
    "packing": Goal("arenas and time of the packer", ("pack", "pack-made", "pack-orders")),
    "selection": Goal(
        "selections under a limit of memory, on a public contest's instances", ("iopddl",)
    ),
    "co-selection": Goal(
        "kernels chosen together with memory, against kernels chosen alone, under a byte budget",
        ("co-selection",),
    ),
    "calls": Goal("cost of a call and time to the first answer", ("overhead", "start")),
    "adaptation": Goal(
        "plans for shapes beside one dynamic plan, and policies of the selector",
        ("dynamic", "selector", "tail"),
    ),
    "checksums": Goal(
        "products that detect faults of hardware: cost, faults found, false alarms",
        ("checksums",),
    ),
    "approximate": Goal(
        "products in fewer bits under an error clause: gain, cost of checks, wrong answers",
        ("approximate",),
    ),
    "self-check": Goal(
        "what the check of a compile by itself costs, and what it reaches", ("self-check",)
    ),
    "compile-time": Goal("time of a compile and of the tools", ("compile", "tooling")),
    "reproducibility": Goal("replays that make the same bytes", ("replay",)),
    "evidence": Goal(
        "what the benchmark database withstands, and how fast it answers",
        ("evidence", "evidence-postgresql"),
    ),
    "noise": Goal("verdicts on known differences, on an idle machine", ("noise",)),
    "predict": Goal("estimates of programs that are left out, against measurements", ("predict",)),
    "tuning": Goal(
        "how near to the optimum searches come, and how studies scale with workers",
        ("strategies", "tune-workers"),
    ),
    "serving": Goal(
        "`pyc-serve` beside onnxruntime behind the same HTTP stack, and a service under faults",
        ("serve", "soak", "faults"),
    ),
    "exactness": Goal("errors of the elementwise functions", ("functions",)),
    "equivalence": Goal(
        "what `equivalent` answers on published rules, damaged ones and mutants", ("equivalence",)
    ),
    "campaign": Goal("what was attacked, how often, and with what result", ("campaign",)),
    "onnx-nodes": Goal(
        "every node case of the onnx wheel: right, refused and why", ("onnx-nodes",)
    ),
}

# Goals whose pages the tests write (test/py/support/pages.py).
_WRITTEN_ELSEWHERE = frozenset({"equivalence"})
_HOW = """\
Values are medians, with the 10th to 90th percentile in parentheses where a measurement was
repeated. A column `a / b` is the value of a divided by that of b.
"""
_INDEX = """\
# Results

One page per goal, each with the newest stored run of its suites.
[results/README.md](results/README.md) describes the stored files.
[results/tests.md](results/tests.md) lists the slices of the tests at full counts, when each last
ran and what it counted.
[The kernels' design notes](design-notes/kernels.md) and
[the planner's](design-notes/memory.md) compare them with the goals and explain what is missed.

| page | shows | runs | machine |
|---|---|---|---|
"""


def pages_of(folder: Path) -> dict[str, str]:
    """Write each page, by its name under docs/. Raises PycError for a malformed report."""
    reports = {path.stem: Report.load(path) for path in sorted(folder.glob("*.json"))}
    goals = _goals_of(reports)
    index = [_index_row(name, goal, reports) for name, goal in goals.items()]
    pages = {"results.md": _INDEX + "\n".join(index or ["| no results are stored yet | | | |"])}
    pages["results.md"] += "\n"
    own = {n: goal for n, goal in goals.items() if n not in _WRITTEN_ELSEWHERE}
    return pages | {f"results/{n}.md": _page(g, reports) for n, g in own.items()}


def _goals_of(reports: Mapping[str, Report]) -> dict[str, Goal]:
    """Return the goals with the reports that exist, and one for each report without a goal."""
    kept = {
        name: Goal(goal.title, found)
        for name, goal in GOALS.items()
        if (found := tuple(stem for stem in goal.reports if stem in reports))
    }
    known = {stem for goal in kept.values() for stem in goal.reports}
    return kept | {stem: Goal(stem, (stem,)) for stem in reports if stem not in known}


def _index_row(name: str, goal: Goal, reports: Mapping[str, Report]) -> str:
    runs = ", ".join(f"`{stem}`" for stem in goal.reports)
    machines = {_machine(reports[stem]): None for stem in goal.reports}
    return f"| [{name}](results/{name}.md) | {goal.title} | {runs} | {'; '.join(machines)} |"


def _machine(report: Report) -> str:
    return f"{report.environment.cpu}, {report.environment.cores} cores"


def _page(goal: Goal, reports: Mapping[str, Report]) -> str:
    head = f"# Results: {goal.title}\n\n{_HOW}"
    return "\n".join([head, *(_section(stem, reports[stem]) for stem in goal.reports)])


def _section(stem: str, report: Report) -> str:
    return f"## {stem}\n\n{_settings(report)}{markdown(report)}"


def _settings(report: Report) -> str:
    plain = {k: v for k, v in report.settings.items() if isinstance(v, str | int | float)}
    listed = ", ".join(f"{name}: {value}" for name, value in plain.items())
    return f"Settings: {listed}.\n\n" if plain else ""
