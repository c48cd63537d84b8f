"""Compiles through the cache: a hit's program is the one that would have been compiled."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ALL_CASES
from faults import largest_file

import pyc_mlir
from pyc_mlir import Tensor
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact
from pyc_mlir.artifact.artifact import to_bytes
from pyc_mlir.cache.cache import Cache, choose, open_cache
from pyc_mlir.cache.key import SEEN, Identity
from pyc_mlir.cache.store import ARTIFACT, CacheStore, Unkeyed, default_folder
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.log import Event, decisions_of, read_log
from pyc_mlir.tools import pyc_cache, pyc_compile
from pyc_mlir.util.pages import in_own_memory

W = np.arange(1024, dtype=np.float32).reshape(32, 32) / 1024
X = np.ones((2, 32), np.float32)
OPTIONS = make_options(kernels="iree", planner_mode="iree")
WHO = Identity({"numpy": "1"}, "s", {"cpu": "x"})


def model(x: Tensor["f32", 2, 32]):  # noqa: F821
    return np.tanh(x @ W)


def cache_in(folder: Path, identity=lambda: WHO, ahead: float = 0.0) -> Cache:
    return Cache(CacheStore(folder, clock=lambda: time.time() + ahead), identity=identity)


def compiled(cache: Cache, source=model, inputs=None, options=OPTIONS):
    made = build(source, inputs, options, cache=cache)
    assert made.cached is not None
    return made, made.cached.outcome, [e.code for e in made.cached.events]


@pytest.fixture(scope="module")
def plain() -> bytes:
    return to_bytes(build(model, None, OPTIONS))


@pytest.fixture(scope="module")
def kept(plain, tmp_path_factory) -> Path:
    """A folder with the model's entry; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("kept")
    made, outcome, codes = compiled(cache_in(folder))
    assert (outcome, codes) == ("miss", [ReasonCode.CACHE_MISS])
    assert to_bytes(made) == plain, "the cache is no part of the bytes"
    return folder


@pytest.fixture
def folder(kept, tmp_path) -> Path:
    return shutil.copytree(kept, tmp_path / "cache")


@pytest.fixture
def quick(plain, monkeypatch) -> None:
    """The compiler's place is taken by its answer."""
    answer = artifact.from_bytes(plain)
    monkeypatch.setattr("pyc_mlir.compilation.attempts.compiled", lambda *_: answer)


def no_compile(monkeypatch) -> None:
    monkeypatch.setattr("pyc_mlir.compilation.attempts.compiled", None)


@pytest.mark.full
def test_hits_have_the_bytes_of_a_compile(kept, plain, monkeypatch):
    no_compile(monkeypatch)
    cache = cache_in(kept)
    for expected in ("hit", "memory", "memory"):
        made, outcome, codes = compiled(cache)
        assert (outcome, codes) == (expected, [])
        assert to_bytes(made) == plain
    assert cache.counts == {"hit": 1, "memory": 2}
    program = pyc_mlir.Program(made)
    np.testing.assert_allclose(program(X), np.tanh(X @ W), rtol=1e-5)
    record = program.stats().cache
    assert record is not None and record.outcome == "memory" and len(record.key) == 64
    assert record.key_seconds > 0 and record.find_seconds > 0


def test_artifacts_hold_no_paths(plain):
    here = Path(__file__)
    for text in (str(here), str(here.parent), here.name, here.stem, sys.prefix):
        assert text.encode() not in plain


def test_a_miss_says_what_differs(folder, quick):
    cache = cache_in(folder)
    made, outcome, codes = compiled(cache, lambda x: np.tanh(x @ W), [Tensor["f32", 2, 32]])
    assert (outcome, codes) == ("hit", []), "another function, the same program"
    other = make_options(kernels="iree", planner_mode="iree", iree_flags=["--iree-opt-level=O1"])
    made, outcome, codes = compiled(cache, options=other)
    assert (outcome, codes) == ("miss", [ReasonCode.CACHE_MISS])
    assert made.cached is not None
    assert "differs in options.iree_flags" in made.cached.events[0].why


def test_a_damaged_entry_is_compiled_again(folder, plain):
    (entry,) = CacheStore(folder).entries()
    path = CacheStore(folder).path(entry.name) / ARTIFACT
    path.write_bytes(path.read_bytes()[:-9] + b"unheard-of"[:9])
    cache = cache_in(folder)
    made, outcome, codes = compiled(cache)
    assert (outcome, codes) == ("miss", [ReasonCode.CACHE_DAMAGED])
    assert to_bytes(made) == plain and cache.counts["CACHE_DAMAGED"] == 1
    assert compiled(cache_in(folder))[1] == "hit"


def test_whole_bytes_that_are_no_artifact(folder, quick):
    cache = cache_in(folder)
    (entry,) = cache.store.entries()
    key = cache.store.key_of(entry.name)
    assert key is not None and cache.store.drop(entry.name)
    cache.store.write(entry.name, key, b"no program")
    assert compiled(cache)[1:] == ("miss", [ReasonCode.CACHE_DAMAGED])


def test_a_folder_that_cannot_be_used(tmp_path, plain, quick):
    (tmp_path / "file").write_bytes(b"")
    made, outcome, codes = compiled(cache_in(tmp_path / "file" / "cache"))
    assert outcome == "miss" and codes[-1] is ReasonCode.CACHE_FOLDER
    assert to_bytes(made) == plain


def test_a_disk_that_is_full(tmp_path, plain, quick):
    """A limit of file sizes stands for it: the system ends the write half way."""
    cache = cache_in(tmp_path)
    with largest_file(len(plain) // 2):
        made, outcome, codes = compiled(cache)
    assert (outcome, codes) == ("miss", [ReasonCode.CACHE_MISS, ReasonCode.CACHE_FOLDER])
    assert made.cached is not None and "File too large" in made.cached.events[-1].why
    assert to_bytes(made) == plain and cache.store.entries() == []
    assert list((cache.store.root / "making").iterdir()) == []
    assert [compiled(cache_in(tmp_path))[1] for _ in range(2)] == ["miss", "hit"]


def test_what_goes_past_the_cache(tmp_path, plain, quick):
    def changed() -> Identity:
        raise Unkeyed("changed")

    made, outcome, codes = compiled(cache_in(tmp_path, changed))
    assert (outcome, codes) == ("bypass", [ReasonCode.CACHE_BYPASSED]) and to_bytes(made) == plain
    answers = iter((WHO, Identity({}, "other", {})))
    cache = cache_in(tmp_path, lambda: next(answers))
    outcome, codes = compiled(cache)[1:]
    assert outcome == "miss" and codes == [ReasonCode.CACHE_MISS, ReasonCode.CACHE_BYPASSED]
    dumping = make_options(kernels="iree", planner_mode="iree", dump_phases=tmp_path / "phases")
    assert compiled(cache_in(tmp_path), options=dumping)[1] == "bypass"
    assert not (tmp_path / "v1").exists()


def test_errors_are_those_of_a_compile(tmp_path):
    for source, inputs in [("missing.onnx", None), (model, [X, X]), (lambda x: object(), [X])]:
        reported = []
        for cache in (None, cache_in(tmp_path)):
            with pytest.raises(PycError) as caught:
                build(source, inputs, OPTIONS, cache=cache)
            reported.append((caught.value.code, caught.value.message))
        assert reported[0] == reported[1]


def test_a_refused_compile_is_counted(tmp_path):
    cache = cache_in(tmp_path / "cache")
    options = make_options(contract=Contract(memory_budget_bytes=1))
    with pytest.raises(PycError) as caught:
        build(model, None, options, cache=cache)
    assert caught.value.code is ReasonCode.BUDGET_IMPOSSIBLE
    assert cache.counts == {"CACHE_MISS": 1, "miss": 1}


def test_a_file_that_is_known_is_not_imported(tmp_path, monkeypatch, plain):
    file = tmp_path / "model.mlir"
    file.write_text(str(pyc_mlir.trace(model)))
    fresh = cache_in(tmp_path / "cache", ahead=100.0)
    made, outcome, _ = compiled(fresh, file)
    assert outcome == "miss" and to_bytes(made) == plain
    no_compile(monkeypatch)
    monkeypatch.setattr("pyc_mlir.frontends.sources.MlirFile.load", None)
    made, outcome, _ = compiled(cache_in(tmp_path / "cache", ahead=100.0), str(file))
    assert outcome == "hit" and to_bytes(made) == plain
    assert compiled(fresh, file)[1] == "memory"


def test_shapes_of_dynamic_programs_are_in_the_key(tmp_path, quick):
    cache = cache_in(tmp_path)
    text = str(pyc_mlir.trace(lambda x: np.tanh(x), Tensor["f32", "n"]))
    outcomes = [compiled(cache, text, shapes)[1] for shapes in (None, [(2,)], [(3,)], [(3,)])]
    assert outcomes == ["miss", "miss", "miss", "memory"]


def test_programs_that_enter_at_iree(tmp_path, quick):
    cache = cache_in(tmp_path)
    text = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n"
    outcomes = [compiled(cache, t)[1] for t in (text, text, text.replace("4x", "5x"))]
    assert outcomes == ["miss", "memory", "miss"]


def test_memory_is_bounded(kept, plain):
    size = len(artifact.from_bytes(plain).vmfb)
    none = Cache(CacheStore(kept), memory_bytes=size - 1, identity=lambda: WHO)
    assert [compiled(none)[1] for _ in range(2)] == ["hit", "hit"]


def test_what_users_may_ask_for(tmp_path):
    assert choose(None, {}) is None and choose(False, {}) is None
    given = cache_in(tmp_path)
    assert choose(given, {}) is given
    assert choose(str(tmp_path), {}) is choose(tmp_path, {}) is open_cache(tmp_path)
    home = choose(True, {"HOME": "/home/x", "XDG_CACHE_HOME": "relative"})
    assert home is not None and home.store.folder == Path("/home/x/.cache/pyc-mlir")
    assert default_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/pyc-mlir")
    for bare in ({}, {"HOME": ""}, {"HOME": "here"}, {"XDG_CACHE_HOME": "relative"}):
        with pytest.raises(PycError, match="cache: expected an absolute path") as caught:
            choose(True, bare)
        assert caught.value.code is ReasonCode.BAD_ARGUMENT
    for odd in (3, "", object()):
        with pytest.raises(PycError, match="cache: expected"):
            choose(odd, {})  # type: ignore[arg-type]


def test_compile_takes_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("pyc_mlir.cache.cache.current_identity", lambda: WHO)
    options = {"kernels": "iree", "planner_mode": "iree", "cache": tmp_path}
    for expected in ("miss", "memory"):
        record = pyc_mlir.compile(model, **options).stats().cache
        assert record is not None
        assert record.outcome == expected


def test_command_lines(tmp_path, capsys, monkeypatch):
    """`pyc-compile --cache-dir` writes the same program and log; `pyc-cache` shows the entries."""
    monkeypatch.setattr("pyc_mlir.cache.cache.current_identity", lambda: WHO)
    source, folder = tmp_path / "model.mlir", tmp_path / "cache"
    source.write_text(str(pyc_mlir.trace(model)))
    flags = ["--kernels", "iree", "--planner-mode", "iree", "--cache-dir", str(folder)]
    logs = []
    for run, more in enumerate(([], [], ["--memory-budget", "1MiB", "--planner-mode", "balanced"])):
        out, log = tmp_path / f"{run}.vmfb", tmp_path / f"{run}.jsonl"
        line = [str(source), "-o", str(out), "--log", str(log), *flags, *more]
        assert pyc_compile.run([*line, "-v"]) == 0
        assert "  cache " in capsys.readouterr().out
        logs.append(read_log(log))
    assert (tmp_path / "0.vmfb").read_bytes() == (tmp_path / "1.vmfb").read_bytes()
    events = [[e for e in log if isinstance(e, Event)] for log in logs]
    cached = [found[0] for found in events]
    assert [e.outcome for e in cached] == ["miss", "memory", "miss"]
    assert [e.outcome for found in events for e in found[1:]] == ["not checked"] * 3
    assert cached[0].reasons[0].code == "CACHE_MISS"
    assert Recipe.from_log(decisions_of(logs[0])) == Recipe.from_log(decisions_of(logs[1]))
    check_tool(folder, capsys)
    assert pyc_compile.run([str(source), "--emit", "linalg", "--cache"]) == 2
    assert "for a program only" in capsys.readouterr().err
    assert pyc_compile.run([*line, "--cache-dir", ""]) == 1
    assert "got ''" in capsys.readouterr().err
    assert pyc_cache.main(["--dir", str(source), "ls"]) == 1
    assert "expected a folder, got: Not a directory" in capsys.readouterr().err


def check_tool(folder: Path, capsys) -> None:
    def tool(*arguments: str) -> tuple[int, str, str]:
        status = pyc_cache.main(["--dir", str(folder), *arguments])
        reported = capsys.readouterr()
        return status, reported.out, reported.err

    status, out, _ = tool("ls")
    assert status == 0 and "2 entries" in out and out.count("for cpu") == 2
    status, out, _ = tool("why")
    assert "options.contract.memory_budget_bytes: 1048576 / None" in out
    assert "options.planner_modes: ['balanced'] / []" in out
    assert tool("verify")[0] == 0
    entries = CacheStore(folder).entries()
    assert tool("why", *(e.name[:12] for e in entries))[0] == 0
    nobody = CacheStore(folder).path("f" * 64)
    nobody.mkdir()
    assert "memory_budget_bytes" in tool("why")[1], "of the latest one with a key"
    assert "[CACHE_DAMAGED]" in tool("why", "ffff")[2]
    nobody.rmdir()
    (CacheStore(folder).path(entries[0].name) / ARTIFACT).write_bytes(b"")
    status, out, err = tool("verify", "--drop")
    assert status == 1 and "1 damaged" in out and "dropped [CACHE_DAMAGED]" in err
    assert "no other entry" in tool("why")[1]
    assert "removed 1, kept 0" in tool("gc", "--max-size", "0")[1]
    for wrong in (["why"], ["why", "x"], ["gc", "--max-size", "x"], ["what"], []):
        assert tool(*wrong)[0] == 2


@pytest.mark.parametrize("processes", [2, 8] if ALL_CASES else [2])
@pytest.mark.full
def test_processes_compile_the_same_model_at_once(tmp_path, processes, plain):
    source = tmp_path / "model.mlir"
    source.write_text(str(pyc_mlir.trace(model)))
    flags = ["--kernels", "iree", "--planner-mode", "iree", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "pyc_mlir.tools.pyc_compile", str(source), *flags]
    # A process that begins right after PyC's source was changed goes past the cache.
    newest = max(mtime for _, _, mtime in SEEN) / 1e9
    time.sleep(min(max(0.0, newest + 1.0 - time.time()), 5.0))
    runs = [
        subprocess.Popen([*command, "-o", f"{n}.vmfb", "--log", f"{n}.jsonl"], cwd=tmp_path)
        for n in range(processes)
    ]
    assert [run.wait(300) for run in runs] == [0] * processes
    for number in range(processes):
        assert (tmp_path / f"{number}.vmfb").read_bytes() == plain
        line = json.loads((tmp_path / f"{number}.jsonl").read_text().splitlines()[-1])
        assert line["part"] == "cache" and line["outcome"] in ("miss", "hit")
        assert all(r["code"] == "CACHE_MISS" for r in line["reasons"])
    store = CacheStore(tmp_path / "cache")
    assert [store.check(e.name) for e in store.entries()] == [""]
    assert os.listdir(store.root / "making") == []


def test_large_programs_are_not_copied(tmp_path):
    """An entry is read to large pages, where a `Program` leaves it."""
    large = np.arange(1 << 20, dtype=np.float32).reshape(32, -1)
    options = make_options(kernels="iree", planner_mode="iree")
    kept, _, _ = compiled(cache_in(tmp_path), lambda x: x @ large, [X], options)
    found, outcome, _ = compiled(cache_in(tmp_path), lambda x: x @ large, [X], options)
    assert outcome == "hit" and isinstance(found.vmfb, memoryview) and found.vmfb.readonly
    assert in_own_memory(found.vmfb) is found.vmfb
    assert found.vmfb == kept.vmfb and to_bytes(found) == to_bytes(kept)
    first, second = pyc_mlir.Program(found), pyc_mlir.Program(found)
    np.testing.assert_allclose(first(X), X @ large, rtol=1e-4)
    np.testing.assert_array_equal(first(X), second(X))


def test_the_user_s_own_cache_is_the_default(tmp_path):
    home = {"HOME": str(tmp_path)}
    found = choose(None, home)
    assert found is not None and found.store.folder == tmp_path / ".cache" / "pyc-mlir"
    assert choose(None, {**home, "PYC_CACHE": "1"}) is found is choose(True, home)
    assert choose(None, {**home, "PYC_CACHE": "0"}) is None and choose(False, home) is None
    assert choose(True, {**home, "PYC_CACHE": "0"}) is found, "asked for"
    assert not list(tmp_path.iterdir()), "nothing is made before a program is kept"
    with pytest.raises(PycError, match=r"PYC_CACHE: expected 0 .* or 1 .*, got 'no'") as caught:
        choose(None, {**home, "PYC_CACHE": "no"})
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOME": ""},
        {"HOME": "/"},
        {"HOME": "/no-such-home"},
        {"XDG_CACHE_HOME": "/"},
        {"XDG_CACHE_HOME": "/no-such-folder"},
        {"XDG_CACHE_HOME": "/tmp"},  # all may write there
    ],
)
def test_no_folder_is_made_up(variables):
    assert choose(None, variables) is None


def test_a_folder_of_others_is_not_used_unasked(tmp_path, monkeypatch):
    home = {"HOME": str(tmp_path)}
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert choose(None, home) is None and choose(True, home) is not None
    monkeypatch.undo()
    folder = tmp_path / ".cache" / "pyc-mlir"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert choose(None, home) is None


COMPILE = """
import sys, numpy as np, pyc_mlir
x = np.ones(4, np.float32)
program = pyc_mlir.compile(lambda x: x + x, [x], kernels="iree", planner_mode="iree")
record = program.stats().cache
print(record and record.outcome, *(e.code.name for e in record.events) if record else ())
assert np.all(pyc_mlir.jit(lambda x: x * 3)(x) == 3)
"""


def outcome(**variables: str) -> str:
    """What the cache did for a compile in a process with these variables alone."""
    base = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "PYC_CACHE")}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, env={**base, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.full
def test_a_second_process_finds_what_the_first_one_compiled(tmp_path):
    newest = max(mtime for _, _, mtime in SEEN) / 1e9
    time.sleep(min(max(0.0, newest + 1.0 - time.time()), 5.0))
    assert outcome(HOME=str(tmp_path)).split()[0] == "miss"
    assert outcome(HOME=str(tmp_path)) == "hit"
    assert outcome(HOME=str(tmp_path), PYC_CACHE="0") == "None"


@pytest.mark.full
def test_a_home_that_cannot_be_written_to_fails_no_compile(tmp_path):
    before = set(os.listdir("/"))
    assert outcome() == "None"
    assert set(os.listdir("/")) == before
    # Its owner is the process, and no folder can be made in it.
    assert "CACHE_FOLDER" in outcome(HOME="/proc/self")
    (tmp_path / ".cache").write_text("a file")
    assert "CACHE_FOLDER" in outcome(HOME=str(tmp_path))


@pytest.mark.full
def test_logs_and_artifacts_are_the_same_with_and_without_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr("pyc_mlir.cache.cache.current_identity", lambda: WHO)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    source = tmp_path / "model.mlir"
    source.write_text(str(pyc_mlir.trace(model)))
    made, logs = [], []
    for run, (switch, flags) in enumerate(
        [("0", []), ("1", ["--log"]), ("1", []), ("1", []), ("1", ["--log"]), ("1", ["--no-cache"])]
    ):
        monkeypatch.setenv("PYC_CACHE", switch)
        out, log = tmp_path / f"{run}.vmfb", tmp_path / f"{run}.jsonl"
        more = [*flags, str(log)] if "--log" in flags else flags
        line = [str(source), "-o", str(out), "--kernels", "iree", "--planner-mode", "iree", *more]
        assert pyc_compile.run(line) == 0
        made.append(out.read_bytes())
        if "--log" in flags:
            logs.append([replace(decision, measured={}) for decision in read_log(log)])
    assert len(set(made)) == 1 and logs[0] == logs[1]
    assert any(decision.site.location for decision in decisions_of(logs[0]))
    assert len(CacheStore(tmp_path / ".cache" / "pyc-mlir").entries()) == 1
