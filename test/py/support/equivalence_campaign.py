"""Answers of the engines of equivalence on published pairs, spellings and mutants, as a report.

    python test/py/support/equivalence_campaign.py [--mutants 10000]

The page docs/results/equivalence.md is made from the stored report.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import equivalence_mutants as made
import equivalence_rules as rules
import numpy as np

from pyc_mlir import Tensor, nn
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.equivalence import Counterexample, Proof, Relation, equivalent
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.pipelines.pyc.equivalence.decide import decide
from pyc_mlir.pipelines.pyc.equivalence.nodes import Graph, Program
from pyc_mlir.tools.docs import gen_docs

RESULT = Path(__file__).resolve().parents[3] / "docs" / "results" / "equivalence.json"
SPELLINGS = ("no maximum", "late division", "scale on queries", "root", "moments", "all")
_FUNCTION = re.compile(r"func\.func\s+@(\w+)")
Pair = tuple[Program, Program, Graph] | None
Counts = Counter[str]


def answer_of(found: Any) -> str:
    """Return an answer as a word, with the kind of a proof."""
    name = type(found).__name__.lower()
    return f"{name}, {found.kind}" if isinstance(found, Proof) else name


def pairs(name: str) -> Iterator[Pair]:
    """Yield the rules of a set as programs, None for those that no shapes fit."""
    if name == "flexflow":
        yield from (rules.flexflow_programs(rule) for _, rule in rules.flexflow())
    else:
        listed = rules.taso() if name == "taso" else rules.tensat()
        yield from (rules.programs(a, b) for _, a, b in listed)


def rule_set(name: str) -> tuple[Counts, Counts]:
    """Return the answers to a set of rules, and to the rules damaged once."""
    sound: Counts = Counter()
    damaged: Counts = Counter()
    for number, pair in enumerate(pairs(name)):
        if pair is None:
            sound["not run"] += 1
            continue
        first, second, graph = pair
        sound[answer_of(decide(first, second, graph, explains=False))] += 1
        for mutant in made.mutants(second, graph, 1, number):
            differs = made.differs(first, mutant, number, 1e-11)
            found = decide(first, mutant, graph, explains=False, relation=Relation.REALS)
            damaged[_verdict(found, differs)] += 1
    return sound, damaged


def _verdict(found: Any, differs: bool) -> str:
    if isinstance(found, Proof):
        return "wrong proof" if differs else "proof, equal in f64"
    return "rejected" if differs else "no proof, equal in f64"


def pyc_pairs() -> Counts:
    """Return the answers to the pairs of pyc programs, by their verdicts."""
    counts: Counts = Counter()
    for entry in json.loads((rules.DATA / "pyc" / "verdicts.json").read_text()):
        if "verdict" in entry:
            found = equivalent(*(rules.DATA / entry[k] for k in "ab"))
            counts[f"{entry['verdict']}: {answer_of(found)}"] += 1
    return counts


def mlir_tv() -> Counts:
    """Return the answers to the functions of mlir-tv's pairs: equality of bits, then of reals."""
    counts: Counts = Counter()
    folder = rules.DATA / "mlir-tv"
    for name, entry in json.loads((folder / "verdicts.json").read_text()).items():
        files = [folder / f"{name}.{side}.mlir" for side in ("src", "tgt")]
        relation = Relation.ROUNDED if "associative" in entry["arguments"] else Relation.BITS
        for function in _FUNCTION.findall(files[0].read_text()):
            try:
                found = equivalent(*files, functions=(function, function), relation=relation)
            except PycError as error:
                counts[f"{entry['verdict']}: refused, {error.code.name}"] += 1
            else:
                counts[f"{entry['verdict']}: {answer_of(found)}"] += 1
    return counts


def encoder(layers: int, spelling: str) -> Callable[..., Any]:
    """Return an encoder of width 16 in one of the spellings, or as usual."""
    rng = np.random.default_rng(1)
    weights = [[(rng.normal(size=s) / 4).astype(np.float32) for s in
                ((16, 16), (16, 16), (16, 16), (16, 32), (32, 16), (16,), (16,))]
               for _ in range(layers)]  # fmt: skip

    def says(name: str) -> bool:
        return spelling in (name, "all")

    def norm(x: Any, scale: Any, bias: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        if says("moments"):
            variance = (x * x).mean(-1, keepdims=True) - mean * mean
        else:
            variance = ((x - mean) * (x - mean)).mean(-1, keepdims=True)
        root = np.sqrt(variance + np.float32(1e-5))
        return (x - mean) / root * scale + bias if says("root") else (
            (x - mean) * (1 / root) * scale + bias)  # fmt: skip

    def attention(q: Any, k: Any, v: Any) -> Any:
        scale = np.float32(0.25)
        scores = (q * scale) @ k.T if says("scale on queries") else (q @ k.T) * scale
        e = np.exp(scores if says("no maximum") else scores - scores.max(-1, keepdims=True))
        total = e.sum(-1, keepdims=True)
        return (e @ v) / total if says("late division") else (e / total) @ v

    @made.takes(Tensor["f32", 8, 16])
    def model(x):
        for wq, wk, wv, up, down, scale, bias in weights:
            y = norm(x, scale, bias)
            x = x + attention(y @ wq, y @ wk, y @ wv)
            x = x + nn.gelu(norm(x, scale, bias) @ up) @ down
        return x

    return model


def spellings(layers: int = 4) -> list[tuple[str, str, float]]:
    """Return for each spelling of the encoder the answer and the seconds."""
    graph = Graph()
    base = made.read(encoder(layers, ""), graph)
    found = []
    for name in SPELLINGS:
        other = made.read(encoder(layers, name), graph)
        began = time.process_time()
        answer = decide(base, other, graph, explains=False)
        found.append((name, answer_of(answer), time.process_time() - began))
    return found


def mutants(count: int, seed: int) -> Counts:
    """Return the answers to so many mutants: of exact reals, and with rounded constants."""
    counts: Counts = Counter()
    each = -(-count // len(made.PROGRAMS))
    for function in made.PROGRAMS:
        graph = Graph()
        base = made.read(function, graph)
        for number, mutant in enumerate(made.mutants(base, graph, each, seed)):
            for relation, tolerance in ((Relation.REALS, 1e-11), (Relation.ROUNDED, 1e-6)):
                differs = made.differs(base, mutant, 1000 * seed + number, tolerance)
                found = decide(
                    base, mutant, graph, relation=relation, explains=False, seed=number % 7
                )
                counts[f"{relation.name.lower()}: {_verdict(found, differs)}"] += 1
                counts["counterexamples"] += isinstance(found, Counterexample)
            counts["mutants"] += 1
    return counts


def main(argv: Sequence[str]) -> int:
    """Run everything and store the report; 1 for a wrong proof."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=int, default=10_000)
    flags = parser.parse_args(argv)
    records: list[Record] = []

    def add(workload: str, counts: Counts) -> None:
        for metric, value in sorted(counts.items()):
            records.append(record(workload, "pyc", metric, "pairs", value))

    for name in ("taso", "tensat", "flexflow"):
        sound, damaged = rule_set(name)
        add(name, sound)
        add(f"{name}, damaged once", damaged)
    add("pyc", pyc_pairs())
    add("mlir-tv", mlir_tv())
    for name, answer, seconds in spellings():
        records.append(record(f"encoder, 4 layers: {name}", answer, "CPU time", "s", seconds))
    add("mutants", mutants(flags.mutants, 1))
    Report("equivalence", probe(), {"mutants": flags.mutants}, records).save(RESULT)
    wrong = sum(r["value"] for r in records if "wrong proof" in r["metric"])
    for r in records:
        print(f"{r['workload']}: {r['candidate']} {r['metric']} {r['value']}")
    return int(wrong > 0)


_HEAD = """\
# Results: equivalence

What [`equivalent`](../equivalence.md) answers on published rewrite rules (TASO, TENSAT, FlexFlow),
on mlir-tv's pairs, on pairs of pyc programs with known verdicts, and on mutants of eight programs.
A mutant, and a rule damaged once, has one changed op, operand, parameter or constant; f64 on other
arguments tells whether it differs. Written by `python test/py/support/equivalence_campaign.py`.

| pairs | answer | number |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = []
    for r in Report.load(RESULT).records:
        timed = r["unit"] == "s"
        metric = r["candidate"] if timed else r["metric"]
        value = f"{r['value']:.3f} s of CPU time" if timed else f"{r['value']:,}"
        rows.append(f"| {r['workload']} | {metric} | {value} |")
    return _HEAD + "\n".join(rows) + "\n"


PAGES: gen_docs.Pages = {"results/equivalence.md": page}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
