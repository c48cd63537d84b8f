"""The four folders install as one package: as a wheel and editable, without a network."""

import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from pyc_mlir import spec
from pyc_mlir.api import build, compile
from pyc_mlir.artifact.artifact import write
from pyc_mlir.compilation.options import make_options
from pyc_mlir.tools.demo.digits import MODELS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {
    "pyc_mlir": "pyc_mlir",
    "dialects": "pyc_mlir.dialects",
    "pipelines": "pyc_mlir.pipelines",
    "tools": "pyc_mlir.tools",
}
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
NOT_INSTALLED = [path.removeprefix("/") for path in WHEEL["exclude"]]
BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE")
IMPORTS = """
import pyc_mlir, pyc_mlir.measure.records, pyc_mlir.dialects.errors, pyc_mlir.pipelines.target.cost
import pyc_mlir.tools.pyc_bench
from pyc_mlir.dialects import errors
print(pyc_mlir.__file__, errors.__file__)
"""


def pip(*arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    command = [sys.executable, "-m", "pip", *arguments, *quiet, "--no-index"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def import_layers(python: Path | str, cwd: Path) -> list[str]:
    """The files that a fresh interpreter loads the package and a lower layer from."""
    command = [str(python), "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what is packaged, without the version that git knows."""
    copy = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(source), "--wheel-dir", str(folder))
    (path,) = folder.glob("pyc_mlir-*.whl")
    return path


@pytest.fixture
def python(tmp_path) -> Path:
    """An interpreter of its own that sees this one's dependencies, but not this PyC.

    Dependencies come from a folder of links, because our site-packages also holds the editable
    PyC that must not answer in the new one's place.
    """
    sites = [Path(p) for p in sys.path if Path(p).name == "site-packages"]
    links = tmp_path / "dependencies"
    links.mkdir()
    for entry in (e for site in reversed(sites) for e in site.iterdir()):
        if entry.suffix != ".pth" and "pyc_mlir" not in entry.name:
            (links / entry.name).unlink(missing_ok=True)
            (links / entry.name).symlink_to(entry)
    venv.create(tmp_path / "venv", symlinks=True)
    (new_site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (new_site / "dependencies.pth").write_text(f"{links}\n")
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.full
def test_wheel_holds_every_source_file(wheel):
    inside = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    expected = {
        "/".join((*package.split("."), *path.relative_to(ROOT / folder).parts))
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
        if not any(path.is_relative_to(ROOT / left) for left in NOT_INSTALLED)
    }
    assert {n for n in inside if n.endswith(".py")} == expected
    assert "pyc_mlir/py.typed" in inside
    assert not [n for n in inside if not n.startswith("pyc_mlir/")]


@pytest.mark.full
def test_building_leaves_nothing_behind(wheel, source):
    left = {path.name for path in source.iterdir()}
    assert left == {*FOLDERS, *BUILD_FILES}


@pytest.mark.full
def test_wheel_installs_and_imports(wheel, python, tmp_path):
    pip("--python", str(python), "install", str(wheel))
    for file in import_layers(python, tmp_path):
        assert Path(file).is_relative_to(tmp_path / "venv")


@pytest.mark.full
def test_a_wheel_and_a_checkout_do_not_get_in_each_others_way(wheel, python, source):
    """In a checkout's folder the checkout's sources answer, all four layers of them."""
    pip("--python", str(python), "install", str(wheel))
    for file in import_layers(python, source):
        assert Path(file).is_relative_to(source)


@pytest.mark.full
def test_editable_installs_and_imports(source, python, tmp_path):
    pip("--python", str(python), "install", "--editable", str(source))
    for file in import_layers(python, tmp_path):
        assert Path(file).is_relative_to(source)


def test_pins_agree_between_extras():
    project = PROJECT["project"]
    extras = dict(project["optional-dependencies"])
    del extras["lowest"]  # the other end of the ranges
    groups = [project["dependencies"], *extras.values()]
    pins: dict[str, str] = {}
    for requirement in (r for group in groups for r in group if "==" in r):
        name, _, version = requirement.partition("==")
        assert pins.setdefault(name.partition("[")[0], version) == version


def test_without_extras_no_compiler_is_installed():
    names = {re.split("[=<>]", r)[0] for r in PROJECT["project"]["dependencies"]}
    assert names == {"iree-base-runtime", "numpy", "ml_dtypes"}


def test_extras_of_front_ends_bring_the_compiler():
    extras = PROJECT["project"]["optional-dependencies"]
    for name in ("onnx", "torch", "jax"):
        assert "pyc-mlir[compile]" in extras[name]


def test_ranges_have_tested_ends():
    """Only what has no stable interface is pinned; `newest` is what the tests install."""
    base = PROJECT["project"]["dependencies"]
    extras = PROJECT["project"]["optional-dependencies"]
    pinned = {r.partition("==")[0] for r in (*base, *extras["compile"]) if "==" in r}
    assert pinned == {"iree-base-runtime", "iree-base-compiler", "torch-mlir"}
    found = [re.fullmatch(r"(\w+)>=(.+),<\d+", r) for r in base if ">=" in r]
    ranges = {m[1]: m[2] for m in found if m is not None}
    assert len(ranges) == len(found)
    assert ranges == dict(r.split("==") for r in extras["lowest"])
    installed = {name: version(name) for name in ranges}
    assert dict(r.split("==") for r in extras["newest"]).keys() == installed.keys()


COMMANDS = ("ls", "verify", "gc", "why")
WITHOUT_COMPILER = """
import sys, importlib.abc
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch_mlir" or name.startswith("iree.compiler"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import pyc_mlir
print(pyc_mlir.load(sys.argv[1]) is not None)
try:
    pyc_mlir.compile
except pyc_mlir.PycError as error:
    print(error)
from pyc_mlir.tools import pyc_cache
for command in sys.argv[3:]:
    print(command, pyc_cache.main(["--dir", sys.argv[2], command]))
"""


@pytest.mark.full
def test_an_installed_wheel_runs_programs_without_a_compiler(wheel, python, tmp_path):
    made = build(MODELS["mlp"], [(2, 1, 8, 8)], make_options(planner_mode="iree", kernels="iree"))
    write(made, tmp_path / "model.vmfb")
    for width in (4, 8):
        compile(lambda x: x + 1, [spec("f32", (width,))], cache=tmp_path / "cache")
    pip("--python", str(python), "install", str(wheel))
    files = [str(tmp_path / name) for name in ("model.vmfb", "cache")]
    command = [str(python), "-c", WITHOUT_COMPILER, *files, *COMMANDS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith("True\n") and "'.[compile]'" in done.stdout, done.stderr
    assert "2 entries, 0 damaged" in done.stdout and "parts of the key" in done.stdout
    statuses = [line for line in done.stdout.splitlines() if line.split(" ")[0] in COMMANDS]
    assert statuses == [f"{command} 0" for command in COMMANDS], done.stderr


@pytest.mark.full
def test_a_wheel_can_be_built_from_the_source_distribution(source, wheel, tmp_path):
    """The archive holds all that a wheel needs, and the same files come out."""
    script = f"from hatchling.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    made = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=source
    )
    assert made.returncode == 0, made.stderr
    pip("wheel", str(tmp_path / made.stdout.split()[-1]), "--wheel-dir", str(tmp_path))
    (again,) = tmp_path.glob("pyc_mlir-*.whl")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()
