"""Walk the ways of three new users on a bare clone in clean environments, and name each stumble.

    python test/first_hour.py [deployment] [frameworks] [research] [--reuse] [--keep] [--outcomes F]

Each user gets a clone of the last commit, a virtual environment and an empty home folder, installs
PyC from the clone as README says, and does what README and the docs show. A step is one command: it
has an exit status, texts that its output must have, and texts that it must not have. The script goes
on after a stumble, and ends with status 1 if there was one. `--reuse` installs PyC alone and takes
its dependencies from the environment that runs the script: quick, and without a network. The table
of stumbles before and after is docs/design-notes/first-hour.md. Needs no package itself.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
    """A way of steps, the extras that the user installs, and files that the user writes."""

    name: str
    extras: str
    steps: tuple[Step, ...]
    files: Mapping[str, str] = field(default_factory=dict)


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
PREFORK = """
import os, sys
import numpy as np
import pyc_mlir

x = np.ones((2, 1, 8, 8), np.float32)
program = pyc_mlir.load("model.vmfb", pyc_mlir.Device("local-task"))
expected = program(x)  # the parent serves, too
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        same = np.array_equal(pyc_mlir.load("model.vmfb")(x), expected)
        os._exit(0 if same else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0, 0, 0] and np.array_equal(program(x), expected)
print("workers answer")
"""
SERVE = """
import concurrent.futures as futures
import numpy as np
import pyc_mlir

program = pyc_mlir.load("model.vmfb")
x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
with futures.ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(lambda _: program(x), range(40)))
assert all(np.array_equal(answers[0], a) for a in answers)
try:
    program(x[:, :, :4])
except pyc_mlir.PycError as error:
    print(error)
print(program.stats())
"""
DEPLOYMENT = User(
    "deployment",
    "onnx",
    (
        Step(
            "import in the checkout", "cd $CLONE && python -c 'import pyc_mlir as p; print(p.jit)'"
        ),
        Step("python -m pyc_mlir", "cd $CLONE && python -m pyc_mlir", ("pyc-compile", "pyc-bench")),
        Step("nothing is left in the checkout", "git -C $CLONE status --porcelain", never=("?? ",)),
        Step("pyc-doctor", "pyc-doctor", never=("none installed", "fail")),
        Step(
            "compile an ONNX model",
            f"pyc-compile {MODELS}/digits_cnn.onnx --dim batch=1:8 -o model.vmfb --log log.jsonl -v",
            ("image", "in all"),
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
            f"pyc-compile {MODELS}/digits_mlp.onnx --input image=1x1x8x8 -o one.vmfb && pyc-run one.vmfb",
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
            "unshare -rm bash -ec 'mount -o remount,ro,bind / 2>/dev/null || mount -o remount,ro /; "
            "pyc-run one.vmfb && pyc-doctor'",
            ("1x10xf32",),
            needs="unshare -rm bash -ec 'mount -o remount,ro,bind / || mount -o remount,ro /'",
        ),
    ),
    {"prefork.py": PREFORK, "serve.py": SERVE},
)

TORCH = """
import torch, numpy as np
import pyc_mlir

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
x = torch.randn(8, 16)
expected = model(x).detach().numpy()
"""
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
    {
        "module.py": TORCH
        + """
program = pyc_mlir.compile(model, [x])
np.testing.assert_allclose(np.asarray(program(x)), expected, rtol=1e-4, atol=1e-5)
program.save("module.vmfb")
np.testing.assert_allclose(
    np.asarray(pyc_mlir.load("module.vmfb")(x)), expected, rtol=1e-4, atol=1e-5
)
print("module", program)
""",
        "backend.py": TORCH
        + """
compiled = torch.compile(model, backend="pyc")
with torch.inference_mode():
    np.testing.assert_allclose(compiled(x).numpy(), expected, rtol=1e-4, atol=1e-5)
print("compiled")
""",
        "train.py": TORCH
        + """
model.train()
step = torch.compile(model, backend="pyc")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = step(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
assert losses[-1] < losses[0], losses
print("trained", losses)
""",
        "random_torch.py": TORCH
        + """
net = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.Dropout(0.5)).train()
drawn = torch.compile(net, backend="pyc")
torch.manual_seed(1)
first, second = drawn(x), drawn(x)
share = float((first == 0).float().mean())
assert 0.4 < share < 0.6 and not torch.equal(first, second), share
noise = torch.compile(lambda t: t + torch.randn_like(t), backend="pyc")
assert 0.5 < float((noise(torch.zeros(4096))).std()) < 1.5
print("random", share)
""",
        "refused.py": TORCH
        + """
class Sparse(torch.nn.Module):
    def forward(self, t):
        return torch.nonzero(t)

try:
    pyc_mlir.compile(Sparse(), [x])
except pyc_mlir.PycError as error:
    print(error)
""",
        "jaxed.py": """
import jax, jax.numpy as jnp, numpy as np
import pyc_mlir.jax

def f(x, w):
    return jax.nn.softmax(jnp.tanh(x @ w))

x, w = np.ones((4, 8), np.float32), np.eye(8, dtype=np.float32)
np.testing.assert_allclose(np.asarray(pyc_mlir.jax.jit(f)(x, w)), f(x, w), rtol=1e-5)
print("jitted")
""",
        "jax_train.py": """
import jax, jax.numpy as jnp, numpy as np
import pyc_mlir.jax

def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)

@pyc_mlir.jax.jit
def step(w, x, y):
    value, gradient = jax.value_and_grad(loss)(w, x, y)
    return value, w - 0.1 * gradient

rng = np.random.default_rng(0)
x, w = rng.normal(size=(32, 4)).astype(np.float32), np.zeros(4, np.float32)
y = x @ np.ones(4, np.float32)
values = []
for _ in range(10):
    value, w = step(w, x, y)
    values.append(float(np.asarray(value)))
assert values[-1] < values[0] / 4, values
print("trained", values[-1])
""",
        "jax_random.py": """
import jax, numpy as np
import pyc_mlir.jax

def draw(seed):
    key = jax.random.key(seed)
    return jax.random.normal(key, (4, 5)), jax.random.uniform(key, (7,))

for got, wanted in zip(pyc_mlir.jax.jit(draw)(np.int32(3)), jax.jit(draw)(np.int32(3))):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6)

def bits(seed):
    return jax.random.bits(jax.random.key(seed), (9,))

assert np.array_equal(np.asarray(pyc_mlir.jax.jit(bits)(np.int32(3))), bits(np.int32(3)))
print("equal bits")
""",
        "scan.py": """
import jax, jax.numpy as jnp, numpy as np
import pyc_mlir.jax

def f(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=512)[0]

x, w = np.ones((2, 8), np.float32), np.eye(8, dtype=np.float32) * 0.9
np.testing.assert_allclose(np.asarray(pyc_mlir.jax.jit(f)(x, w)), f(x, w), rtol=1e-4)
print("scanned")
""",
    },
)

PLUGIN = '''
"""A third party's pass, policy and kernel family."""

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.kernels.families import rows
from pyc_mlir.pipelines.pyc.rewriting import functions_of, pyc_ops


@dataclass(frozen=True)
class TanhGelu:
    """Offer the tanh formula for exact gelus."""

    name: ClassVar[str] = "tanh-gelu"
    at_most: int = option(8, "gelus to replace at most")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        replaced = 0
        for function in functions_of(module):
            ids = OpIds(function)
            for op in pyc_ops(function.regions[0].blocks[0]):
                if op.name == "pyc.gelu" and replaced < self.at_most:
                    site = Site(self.name, ids[op], str(op.location))
                    offered = [Alternative("tanh"), Alternative("exact")]
                    if context.choices.choose(site, offered).name == "tanh":
                        op.attributes["approximate"] = ir.StringAttr.get("tanh", op.context)
                        replaced += 1
        return {"replaced": replaced}


class Plain:
    """Never fuses where it need not."""

    name = "plain"

    def prefer(self, site, alternatives):
        return next((a for a in alternatives if a.name == "keep"), alternatives[0])


FAMILY = replace(rows.FAMILY, name="theirs")
'''
# A distribution as pip would install it, without a build.
METADATA = "Metadata-Version: 2.1\nName: their-plugin\nVersion: 1.0\n"
ENTRY_POINTS = """[pyc_mlir.passes]
tanh-gelu = their_plugin:TanhGelu
[pyc_mlir.policies]
plain = their_plugin:Plain
[pyc_mlir.kernels]
theirs = their_plugin:FAMILY
"""
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
            f"{WITH_PLUGIN} pyc-compile layer.py:layer --policy plain -o plain.vmfb --log p.jsonl && "
            "grep -c '\"keep\"' p.jsonl",
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
    {
        "their_plugin.py": PLUGIN,
        "their_plugin-1.0.dist-info/METADATA": METADATA,
        "their_plugin-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "layer.py": """
import numpy as np
from pyc_mlir import Tensor, nn

w = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)

def layer(x: Tensor["f32", 32, 64]):
    return nn.gelu(x @ w + 1.0) * 2.0

def soft(x: Tensor["f32", 32, 64]):
    return nn.softmax(x)
""",
        "judge.py": """
import sys
from pyc_mlir.artifact.artifact import read

# A program is bad in which the product is not fused with what follows.
fused = any(d.chosen.startswith("fuse:matmul") for d in read(sys.argv[1]).decisions)
sys.exit(0 if fused else 1)
""",
    },
)
USERS = {user.name: user for user in (DEPLOYMENT, FRAMEWORKS, RESEARCH)}


def prepare(user: User, place: Place, reuse: bool) -> str:
    """Clone, make the environment, install; return what went wrong, or nothing."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place.clone)], check=True)
    place.work.mkdir()
    for name, text in user.files.items():
        path = place.work / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
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
