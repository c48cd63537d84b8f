"""Compiles by wisdom: deterministic, replayable, cached under its hash, without a database."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import FULL
from wisdoms import KERNELS, reversed_wisdom, row

from pyc_mlir import Contract, nn
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import to_bytes
from pyc_mlir.artifact.compile_log import read_compile_log
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.key import current_identity, make_key, plugin_kernels
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.debug.replay import replay
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.dialects.util.plugins import registered
from pyc_mlir.measure.environment import current_hashes, current_place
from pyc_mlir.pipelines.choices import wisdom as wisdom_module
from pyc_mlir.pipelines.choices.choices import Coverage, Recipe, coverage
from pyc_mlir.pipelines.choices.evidence import ContentHash, Note
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.util.source_files import file_digest
from pyc_mlir.worker.messages import policy_forms

X = np.zeros((8, 32), np.float32)
SAMPLED = 3
ALL = 100


def model(x):
    w = np.arange(1024, dtype=np.float32).reshape(32, 32) / 1024
    return nn.softmax(nn.relu(x @ w + w[0]))


@pytest.fixture(scope="module")
def plain():
    return build(model, [X], make_options())


@pytest.fixture(scope="module")
def wisdom(plain):
    return reversed_wisdom(plain.decisions)


@pytest.fixture(scope="module")
def made(wisdom):
    return build(model, [X], make_options(policy="fastest", wisdom=wisdom))


def outcome(artifact) -> str:
    return artifact.cached.outcome


def kernels(artifact) -> list[str]:
    return [d.chosen for d in artifact.decisions if d.site.pass_name == KERNELS]


@pytest.mark.full
def test_measured_rows_come_before_predictions(plain, made, wisdom):
    assert kernels(plain) != kernels(made) == ["iree"] * len(kernels(plain))
    for d in made.decisions:
        if d.site.pass_name == KERNELS:
            (line,) = [str(e) for e in d.grounds]
            assert f"[{wisdom.label}]" in line and d.decided_by == "fastest"
    assert made.decisions[0].site.key == "wisdom:module"
    assert made.decisions[0].grounds == (ContentHash(wisdom.hash),)


def test_the_report_of_strict_determinism_names_the_wisdom(wisdom):
    strict = Contract(determinism="strict")
    named = build(model, [X], make_options(policy="fastest", wisdom=wisdom, contract=strict))
    (clause,) = named.contract_report.clauses
    assert Note(f"measurements used: {wisdom.label}") in clause.evidence
    recipe = Recipe.from_log(named.decisions)
    repeated = build(model, [X], make_options(recipe=recipe, contract=strict))
    assert repeated.contract_report.clauses[0].evidence == clause.evidence


def test_replays_are_byte_identical_and_need_no_wisdom(made, tmp_path):
    path = tmp_path / "made.vmfb"
    path.write_bytes(to_bytes(made))
    recorded = read_compile_log(path)
    for _ in range(ALL if FULL else SAMPLED):
        assert to_bytes(replay(model, [X], recorded)) == path.read_bytes()


def counted(monkeypatch, module, name: str) -> list:
    """The results of a function's calls from now on."""
    results, function = [], getattr(module, name)

    def counting(*args):
        results.append(function(*args))
        return results[-1]

    monkeypatch.setattr(module, name, counting)
    return results


def test_a_compile_reads_wisdom_once_and_few_of_its_rows(wisdom, tmp_path, monkeypatch):
    path = tmp_path / "w.json"
    others = [row(f"w1-{i:064d}", "iree", 1e-5) for i in range(200)]
    path.write_bytes(Wisdom.of([*wisdom.rows, *others], {}).to_bytes())
    parsed = counted(monkeypatch, wisdom_module, "parse_json")
    rows = counted(monkeypatch, wisdom_module, "_row")
    made = build(model, [X], make_options(policy="fastest", wisdom=path))
    assert kernels(made) == ["iree"] * len(kernels(made))
    assert len(parsed) == 1
    assert {r.subject for r in rows} == {r.subject for r in wisdom.rows}


def test_wisdom_and_the_cache_share_what_they_know_of_pyc():
    current_identity(began=2e9)
    plugin_kernels()
    read = file_digest.cache_info().misses, registered.cache_info().misses
    current_hashes()
    assert (file_digest.cache_info().misses, registered.cache_info().misses) == read


def test_the_hashes_of_a_compile_are_those_of_measurements():
    place = current_place()
    assert current_hashes() == (place.hardware, place.toolchain)


def test_a_worker_decides_as_this_process_does(made, wisdom):
    contract = Contract(max_compile_seconds=300)
    options = make_options(policy="fastest", wisdom=wisdom, contract=contract)
    data = json.loads(json.dumps(options.data(policy_forms())))
    assert from_data(Options, data, "options", policy_forms()) == options
    there = build(model, [X], options)
    assert [d.facts for d in there.decisions if d.site.pass_name == KERNELS] == [
        d.facts for d in made.decisions if d.site.pass_name == KERNELS
    ]


def test_the_cache_key_has_the_hash_of_the_wisdom(wisdom):
    def key(given: Wisdom | None) -> dict:
        options = make_options(policy="fastest", wisdom=given)
        return json.loads(make_key({}, options, current_identity(began=2e9)).text)

    fields = key(wisdom)["options"]["policy"]["fields"]
    assert fields["wisdom"] == wisdom.hash
    assert fields["hardware"].startswith("h1-") and fields["toolchain"].startswith("t1-")
    other = Wisdom.of(wisdom.rows[:1], {})
    assert len({json.dumps(key(given)) for given in (None, wisdom, other)}) == 3


def test_a_cached_program_is_the_one_of_its_wisdom(wisdom, made, plain, tmp_path):
    cache = Cache(CacheStore(tmp_path), identity=lambda: current_identity(began=2e9))
    by_wisdom = make_options(policy="fastest", wisdom=wisdom)
    first = build(model, [X], by_wisdom, cache=cache)
    again = build(model, [X], by_wisdom, cache=cache)
    assert (outcome(first), outcome(again)) == ("miss", "memory")
    assert kernels(again) == kernels(made)
    other = build(model, [X], make_options(policy="fastest"), cache=cache)
    assert outcome(other) == "miss" and kernels(other) == kernels(plain)


def test_a_retrained_model_uses_the_same_wisdom(wisdom):
    def retrained(x):
        w = np.cos(np.arange(1024, dtype=np.float32)).reshape(32, 32)
        return nn.softmax(nn.relu(x @ w + w[1]))

    again = build(retrained, [X], make_options(policy="fastest", wisdom=wisdom))
    assert kernels(again) == ["iree"] * len(kernels(again))
    assert coverage(again.decisions) == Coverage()


@pytest.mark.parametrize("given", [{"wisdom": Wisdom()}, {"require_evidence": True}])
@pytest.mark.parametrize("policy", [None, "balanced"])
def test_wisdom_wants_the_policy_that_uses_it(given, policy):
    with pytest.raises(PycError, match="expected `fastest` or `explore` beside wisdom") as caught:
        make_options(policy=policy, **given)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


SCRIPT = """
import sys
import numpy as np
import pyc_mlir
from pyc_mlir import nn

program = pyc_mlir.compile(nn.softmax, [np.ones((2, 3), np.float32)], policy="fastest",
                           wisdom=sys.argv[1], cache=False)
program(np.ones((2, 3), np.float32))
loaded = [m for m in sys.modules if m.startswith(("sqlalchemy", "sqlite3", "psycopg",
                                                  "pyc_mlir.lab.evidence.database"))]
assert loaded == [], loaded
"""


@pytest.mark.full
def test_a_compile_never_opens_a_database(wisdom, tmp_path):
    path = tmp_path / "w.json"
    path.write_bytes(wisdom.to_bytes())
    done = subprocess.run([sys.executable, "-c", SCRIPT, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# What measures, searches and promotes; compiles import none of it (test/py/lint/test_layers.py).
ROOMS_WITH_A_DATABASE = (
    "pyc_mlir/lab/evidence/",
    "pyc_mlir/lab/lanes/",
    "pyc_mlir/lab/sessions/session.py",
    "pyc_mlir/lab/tune/",
)


def test_no_module_that_compiles_imports_the_database():
    root = Path(__file__).resolve().parents[3]
    users = [
        str(path.relative_to(root))
        for folder in ("dialects", "pipelines", "pyc_mlir")
        for path in (root / folder).rglob("*.py")
        if "evidence.database" in path.read_text()
    ]
    assert [u for u in users if not u.startswith(ROOMS_WITH_A_DATABASE)] == []
