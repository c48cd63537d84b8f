"""All tools alike: `python -m pyc_mlir`, ``--version``, and hints for what is misspelled."""

import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from pythons import python

from pyc_mlir import CompileOptions, Contract, Device, PycError
from pyc_mlir.__main__ import commands, completion, help_text, main
from pyc_mlir.compilation.options import resolve
from pyc_mlir.iree.compiler import check_phase
from pyc_mlir.pipelines.choices.policies import load_policy

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
TOOLS = sorted(name.removeprefix("pyc-") for name in SCRIPTS)


def test_the_package_lists_each_command_with_what_it_does(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(commands()) == TOOLS
    for name in TOOLS:
        assert any(line.split()[:1] == [name] and len(line.split()) > 4 for line in lines), name


def test_the_package_runs_a_command_in_a_process_of_its_own():
    done = python("-m", "pyc_mlir", "compile", "--list-targets")
    assert done.returncode == 0 and "cpu-avx2" in done.stdout


def test_a_shell_completes_options_commands_and_passes(tmp_path):
    script = completion()
    path = tmp_path / "completion.bash"
    path.write_text(script)

    def completed(line: str) -> set[str]:
        """What bash offers for the last word of a line."""
        tool, word = line.split(" ", 1)
        ask = f"source {path}; f() {{ local s=$(complete -p {tool}); s=${{s#complete }}; "
        ask += f'eval "compgen ${{s% {tool}}} -- {word}"; }}; f'
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    assert completed("pyc-compile --ker") == {"--kernels"}
    assert completed("pyc-cache ver") == {"verify"}
    assert completed("pyc-bench late") == {"latency"}
    assert completed("pyc-opt --pyc-ca") >= {"--pyc-canonicalize", "--pyc-calibration"}
    assert len(script.splitlines()) == len(TOOLS)


def test_completion_leaves_out_what_needs_a_missing_compiler():
    code = """
import sys
sys.modules["iree.compiler"] = None
from pyc_mlir.__main__ import completion
print(completion())
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "pyc-run\n" in done.stdout and "pyc-explain\n" in done.stdout


def test_an_unknown_command_is_refused_with_the_closest(capsys):
    assert main(["complie"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'compile'?" in error and "[BAD_ARGUMENT]" in error
    assert main(["pyc-cache", "--version"]) == 0  # the script's own name is taken, too


@pytest.mark.parametrize("name", TOOLS)
def test_each_tool_tells_its_version(name, capfd):
    assert main([name, "--version"]) == 0
    assert capfd.readouterr().out.startswith(f"pyc-{name} {version('pyc-mlir')}")


def test_the_package_tells_its_version_and_its_usage(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pyc_mlir {version('pyc-mlir')}\n"
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == help_text()


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("compile m.mlir -o x --kernls iree", "--kernels"),
        ("compile m.mlir --emit linlag", "linalg"),
        ("compile m.mlir -o x --target cuda-sm80", "cuda-sm_80"),
        ("run m.vmfb --inptu x", "--input"),
        ("explain m.vmfb --htlm=x", "--html"),
        ("doctor --jsn", "--json"),
        ("cache lss", "ls"),
        ("cache gc --max-sze=3", "--max-size"),
        ("reduce m.mlir --mismatsh --code X", "--mismatch"),
        ("reduce m.mlir --code NATIV_CRASH", "NATIVE_CRASH"),
        ("opt --pyc-fuze", "--pyc-fuse"),
        ("bench pakc", "pack"),
    ],
)
def test_what_is_misspelled_is_named(command, hint, capfd):
    status, err = main(command.split()), capfd.readouterr().err
    assert f"did you mean '{hint}'?" in err
    # A target and a reason code are values that the parser does not know.
    assert status == (1 if hint in ("cuda-sm_80", "NATIVE_CRASH") else 2)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: load_policy("memory-first"), "did you mean 'memory_first'?"),
        (lambda: check_phase("strem"), "did you mean 'stream'?"),
        (lambda: Device("local-synk"), "did you mean 'local-sync'?"),
        (lambda: Contract.of({"memory_budget": 3}), "did you mean 'memory_budget_bytes'?"),
        (lambda: resolve(CompileOptions(planner_mode="balancd")), "did you mean 'balanced'?"),
        (lambda: resolve(CompileOptions(kernels="rowss")), "did you mean 'rows'?"),
    ],
)
def test_names_of_python_calls_are_suggested_too(call, hint):
    with pytest.raises(PycError) as refused:
        call()
    assert hint in refused.value.message


def test_a_name_that_is_like_no_other_gets_no_hint(capsys):
    assert main(["zzzz"]) == 2
    assert "did you mean" not in capsys.readouterr().err
