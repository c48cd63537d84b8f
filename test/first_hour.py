"""Walk the ways of three new users on a bare clone in clean environments, and name each stumble.

    python test/first_hour.py [deployment] [frameworks] [research] [--reuse] [--keep] [--outcomes F]

Each user gets a clone of the last commit, a virtual environment and an empty home folder, installs
PyC from the clone as README says, and does what README and the docs show. A step is one command
with an exit status, texts that its output must have, and texts that it must not have. The script
goes on after a stumble, and ends with status 1 if there was one. `--reuse` installs PyC alone and
takes its dependencies from the environment that runs the script: quick, and without a network. The
table of stumbles before and after is docs/design-notes/first-hour.md. Needs no package itself.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "test" / "users"
# What a clean environment keeps of the caller's: how pip finds packages.
KEPT = ("PIP_", "SSL_", "LANG")
SECONDS = 600
TAIL_LINES = 12
# What no output that people read may have.
NEVER = ("Traceback (most recent call last)", "hal.buffer_view.dim")


@dataclass(frozen=True)
class Step:
    """One thing that a user does: a command of the shell, and what must come of it.

    needs: a command without which the step cannot be done here; it is skipped where that fails.
    """

    name: str
    command: str
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    status: int = 0
    needs: str = "true"


@dataclass(frozen=True)
class User:
    """A way of steps, and the extras that the user installs; test/users/ has the user's files."""

    name: str
    extras: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Place:
    """Where a user works: the clone, the virtual environment, the folder with the user's files."""

    folder: Path

    @property
    def clone(self) -> Path:
        """The bare clone."""
        return self.folder / "pyc"

    @property
    def work(self) -> Path:
        """The user's own folder."""
        return self.folder / "work"

    @property
    def python(self) -> Path:
        """The interpreter of the user's environment."""
        return self.folder / "env" / "bin" / "python"

    def environment(self) -> dict[str, str]:
        """Return a clean environment with the user's commands first."""
        kept = {k: v for k, v in os.environ.items() if k.startswith(KEPT) or k.endswith("_PROXY")}
        path = f"{self.python.parent}{os.pathsep}/usr/local/bin:/usr/bin:/bin"
        folders = {"HOME": self.folder / "home", "TMPDIR": self.folder / "tmp"}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        return {
            **kept,
            **{name: str(path) for name, path in folders.items()},
            "PATH": path,
            "CLONE": str(self.clone),
        }

    def run(self, command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command line of the shell; its output and errors are one text."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=cwd or self.work,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )


MODELS = "$CLONE/tools/demo/models"
READ_ONLY = "mount -o remount,ro,bind / 2>/dev/null || mount -o remount,ro /"
DEPLOYMENT = User(
    "deployment",
    "onnx",
    (
        Step("import in the checkout", "cd $CLONE && python -c 'import pyc_mlir; pyc_mlir.jit'"),
        Step("python -m pyc_mlir", "cd $CLONE && python -m pyc_mlir", ("compile", "bench")),
        Step("nothing is left in the checkout", "git -C $CLONE status --porcelain", never=("?? ",)),
        Step("pyc-doctor", "pyc-doctor", never=("none installed", "fail")),
        Step(
            "compile an ONNX model",
            f"pyc-compile {MODELS}/digits_cnn.onnx --dim batch=1:8 -o model.vmfb -v",
            ("memory ", "constants"),
        ),
        Step(
            "run it",
            "pyc-run model.vmfb --input image=2x1x8x8xf32=@seed:0 --stats --repeat 20",
            ("latency of 20 calls", "2x10xf32"),
        ),
        Step(
            "run it at sizes that it does not take",
            "pyc-run model.vmfb --input image=9x1x8x8xf32=@seed:0",
            ("1 to 8", "DIMENSION_OUT_OF_RANGE"),
            status=1,
        ),
        Step(
            "run one of known sizes without inputs",
            f"pyc-compile {MODELS}/digits_mlp.onnx --input image=1x1x8x8 -o one.vmfb && "
            "pyc-run one.vmfb",
            ("no --input: random numbers", "1x10xf32"),
        ),
        Step(
            "run a model in place of a program",
            f"pyc-run {MODELS}/digits_mlp.onnx",
            ("pyc-compile",),
            status=1,
        ),
        Step(
            "explain it",
            "pyc-explain model.vmfb --size batch=8 && pyc-explain model.vmfb --html page.html && "
            "! grep -q 'hal.buffer_view' page.html",
            ("memory",),
        ),
        Step(
            "keep a memory budget",
            f"pyc-compile {MODELS}/digits_cnn.onnx --input image=1x1x8x8 --memory-budget 1MiB "
            "-o small.vmfb",
            ("memory_budget",),
        ),
        Step(
            "ask for one that no plan keeps",
            f"pyc-compile {MODELS}/digits_cnn.onnx --input image=1x1x8x8 --memory-budget 10KiB "
            "-o none.vmfb",
            ("BUDGET_IMPOSSIBLE",),
            status=1,
        ),
        Step(
            "call it from threads, and wrongly", "python serve.py", ("ARGUMENT_SHAPE", "calls: 40")
        ),
        Step("serve it by forked workers", "python -W ignore prefork.py", ("workers answer",)),
        Step(
            "compare it with plain IREE",
            f"pyc-bench {MODELS}/digits_cnn.onnx --dim batch=1 --against iree --quick "
            "--html bench.html",
            ("iree", "PyC's account"),
        ),
        Step(
            "ask for a peer that is not installed",
            f"pyc-bench {MODELS}/digits_cnn.onnx --dim batch=1 --against openvino",
            ("[bench]",),
            status=1,
            needs="! python -c 'import openvino'",
        ),
        Step(
            "run on a read-only file system",
            f"unshare -rm bash -ec '{READ_ONLY}; pyc-run one.vmfb && pyc-doctor'",
            ("1x10xf32",),
            needs=f"unshare -rm bash -ec '{READ_ONLY}'",
        ),
    ),
)

FRAMEWORKS = User(
    "frameworks",
    "onnx,torch,jax",
    (
        Step("compile a torch module", "python module.py", ("module",)),
        Step("torch.compile", "python backend.py", ("compiled",)),
        Step("a training step", "python train.py", ("trained",)),
        Step("dropout and random tensors", "python random_torch.py", ("random",)),
        Step("an operation that cannot be compiled", "python refused.py", ("refused.py",)),
        Step("jax.jit's twin", "python jaxed.py", ("jitted",)),
        Step("a training step in JAX", "python jax_train.py", ("trained",)),
        Step("jax.random, bit for bit", "python jax_random.py", ("equal bits",)),
        Step("a scan of 512 steps", "timeout 120 python scan.py", ("scanned",)),
    ),
)

WITH_PLUGIN = "PYTHONPATH=$PWD "
RESEARCH = User(
    "research",
    "onnx",
    (
        Step("list passes", "pyc-opt --list-passes", ("pyc-fuse", "func.func")),
        Step(
            "the imported module",
            "pyc-compile layer.py:layer --emit imported | tee layer.mlir",
            ("pyc.gelu",),
            never=("pyc.group",),
        ),
        Step(
            "passes of both kinds",
            "pyc-opt layer.mlir --pyc-canonicalize --pyc-fuse --cse --pyc-log=passes.jsonl",
            ("pyc.group",),
        ),
        Step(
            "a pass by flag", f"{WITH_PLUGIN} pyc-opt layer.mlir --tanh-gelu='at-most=1'", ("tanh",)
        ),
        Step(
            "a pass in a compile",
            f"{WITH_PLUGIN} pyc-compile layer.py:layer --emit pyc --passes tanh-gelu,default",
            ("tanh", "pyc.group"),
        ),
        Step(
            "a policy",
            f"{WITH_PLUGIN} pyc-compile layer.py:layer --policy plain -o plain.vmfb --log p.jsonl"
            " && grep -c '\"keep\"' p.jsonl",
        ),
        Step(
            "a kernel family",
            f"{WITH_PLUGIN} pyc-compile layer.py:soft --kernels theirs -o k.vmfb --log k.jsonl && "
            "grep -o '\"theirs:[a-z]*\"' k.jsonl",
            ("theirs:softmax",),
        ),
        Step(
            "the same program from its log",
            "pyc-compile layer.py:layer -o a.vmfb --log a.jsonl && "
            "pyc-compile layer.py:layer -o b.vmfb --replay a.jsonl && cmp a.vmfb b.vmfb",
        ),
        Step(
            "what differs",
            "pyc-compile layer.py:layer --kernels iree -o i.vmfb --log i.jsonl && "
            "pyc-explain --diff a.jsonl i.jsonl",
            ("select-kernels",),
        ),
        Step(
            "the decision at fault",
            f"{WITH_PLUGIN} pyc-compile layer.py:layer --policy plain -o p.vmfb && "
            "pyc-explain --bisect a.vmfb p.vmfb layer.py:layer --check 'python judge.py {}'",
            ("pyc-fuse",),
        ),
        Step(
            "the smallest module that fails",
            "pyc-reduce layer.mlir --check '! grep -q gelu {}' -o tiny.mlir && cat tiny.mlir",
            ("pyc.gelu",),
            never=("pyc.matmul",),
        ),
    ),
)
USERS = {user.name: user for user in (DEPLOYMENT, FRAMEWORKS, RESEARCH)}


def prepare(user: User, place: Place, reuse: bool) -> str:
    """Clone, make the environment, install; return what went wrong, or nothing."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place.clone)], check=True)
    shutil.copytree(FILES / user.name, place.work)
    venv.create(place.folder / "env", with_pip=True)
    what = f"'.[{user.extras}]'"
    if reuse:
        (site,) = (place.folder / "env").glob("lib/python*/site-packages")
        (site / "reused.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        what = "--no-deps --no-build-isolation ."
    done = place.run(f"python -m pip install --quiet {what}", place.clone)
    return "" if done.returncode == 0 else done.stdout


def stumble(step: Step, place: Place) -> str:
    """Do a step; return what was not as it should be, or nothing."""
    try:
        done = place.run(step.command)
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"
    wrong = [f"expected status {step.status}, got {done.returncode}"]
    wrong *= done.returncode != step.status
    wrong += [f"expected {text!r} in the output" for text in step.says if text not in done.stdout]
    never = (*step.never, *NEVER)
    wrong += [f"expected no {text!r} in the output" for text in never if text in done.stdout]
    if not wrong:
        return ""
    tail = "\n".join(f"    {line}" for line in done.stdout.splitlines()[-TAIL_LINES:])
    return f"{'; '.join(wrong)}\n{tail}"


def walk(user: User, folder: Path, reuse: bool) -> Iterator[tuple[str, str, float, str]]:
    """Yield for each step its name, its outcome, its seconds, and what went wrong."""
    place, began = Place(folder), time.monotonic()
    folder.mkdir()
    wrong = prepare(user, place, reuse)
    yield "install", "failed" if wrong else "passed", time.monotonic() - began, wrong
    for step in user.steps if not wrong else ():
        began = time.monotonic()
        if place.run(step.needs).returncode != 0:
            yield step.name, "skipped", 0.0, f"needs `{step.needs}`"
            continue
        wrong = stumble(step, place)
        yield step.name, "failed" if wrong else "passed", time.monotonic() - began, wrong


def main(arguments: Sequence[str]) -> int:
    """Walk the ways; 1 where a user stumbled."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("users", nargs="*", choices=[*USERS, []], help="default: all")
    parser.add_argument("--reuse", action="store_true", help="dependencies of this environment")
    parser.add_argument("--keep", action="store_true", help="leave the folder, and say where it is")
    parser.add_argument("--outcomes", type=Path, metavar="FILE", help="write outcomes as JSON")
    known = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="pyc-first-hour-"))
    rows = {}
    for name in known.users or USERS:
        for step, outcome, seconds, wrong in walk(USERS[name], folder / name, known.reuse):
            mark = {"passed": "ok", "failed": "STUMBLE", "skipped": "skipped"}[outcome]
            print(f"{name}: {step}: {mark} ({seconds:.1f} s)", flush=True)
            if wrong:
                print(f"  {wrong}", flush=True)
            row = {"outcome": outcome, "seconds": seconds}
            rows[f"test/first_hour.py::{name}::{step}"] = row | ({"reason": wrong} if wrong else {})
    if known.outcomes:
        known.outcomes.write_text(json.dumps(rows, indent=1))
    if known.keep:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return int(any(row["outcome"] == "failed" for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
