"""`make test-frameworks` has all packages of the extra `frameworks`: no test skips unseen."""

import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,.-]+)\])?")
RUN = os.environ.get("PYC_FRAMEWORKS") == "1"


def packages(extra: str) -> set[str]:
    """The packages that an extra installs, those of the extras that it names included."""
    found = set()
    for requirement in EXTRAS[extra]:
        match = REQUIREMENT.match(requirement)
        assert match, requirement
        name, extras = match.groups()
        own = name == PROJECT["project"]["name"]
        found |= {p for e in extras.split(",") for p in packages(e)} if own else {name}
    return found


def test_the_extra_names_packages():
    assert {"torch", "jax", "onnxruntime", "iree-base-compiler"} <= packages("frameworks")
    assert packages("torch") == {"torch"} | packages("compile")


@pytest.mark.skipif(not RUN, reason="checked by `make test-frameworks` only")
def test_every_package_is_installed():
    missing = []
    for name in sorted(packages("frameworks")):
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    assert not missing, f"expected the extra `frameworks`, missing {missing}"
