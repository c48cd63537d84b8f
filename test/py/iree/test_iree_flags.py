"""Flags whose value names a file are told from those whose text says all."""

import re
import subprocess
from pathlib import Path

import iree.compiler
import pytest

from pyc_mlir.iree.compiler import DEFAULT_FLAGS
from pyc_mlir.iree.flags import _WORDS, names_file, reaches_out
from pyc_mlir.pipelines.target.target import TARGETS

TOOL = Path(iree.compiler.__file__).parent / "_mlir_libs" / "iree-compile"
# An option in the tool's help: its name, what stands for its value, the first line of its text.
OPTION = re.compile(r"^ +--([\w-]+)(?:=<([^>]*)>)? +- +(.*)$", re.M)


@pytest.mark.parametrize(
    "flag",
    [
        "--iree-codegen-transform-dialect-library=x.mlir",
        "--iree-codegen-transform-dialect-library=1",
        "--iree-hal-substitute-executable-source=a=b.mlir",
        "--iree-hal-substitute-executable-object=a=b.o",
        "--iree-hal-substitute-executable-configurations-from=folder",
        "--iree-hal-dump-executable-files-to=x",
        "--iree-opt-import-parameters=weights",
        "--iree-preprocessing-pass-pipeline=builtin.module(x{patterns-file=p})",
        "--iree-llvmcpu-system-linker-path",
        "--iree-opt-level=../O1",
        "--of-another-release=word",
        "-o=x",
        "@more",
        "x.mlir",
    ],
)
def test_files(flag):
    assert names_file(flag) and reaches_out(flag)


@pytest.mark.parametrize(
    "flag",
    [
        *DEFAULT_FLAGS,
        *(flag for target in TARGETS.values() for flag in target.flags),
        "--iree-global-opt-data-tiling",
        "--iree-opt-const-eval=false",
        "--iree-stream-partitioning-favor=max-concurrency",
        "--x=-1.5e3",
        "--x=",
    ],
)
def test_what_the_text_says_in_full(flag):
    assert not names_file(flag)


def test_flags_that_tell_more_than_the_program():
    assert reaches_out("--mlir-print-ir-after-all") and not names_file("--mlir-print-ir-after-all")


@pytest.fixture(scope="module")
def options() -> dict[str, tuple[str, str]]:
    """What stands for the value of each option of the compiler, and what is said of it."""
    output_text = subprocess.run(
        [str(TOOL), "--help-hidden"], capture_output=True, text=True, check=True
    )
    return {name: (value, text) for name, value, text in OPTION.findall(output_text.stdout)}


def test_every_option_that_speaks_of_files_is_known_by_its_name(options):
    """Even where the file has the name of a number."""
    assert len(options) > 300
    files = re.compile(r"\b(files?|paths?|director(y|ies)|folders?|filename)\b", re.I)
    texts = {n: t for n, (value, t) in options.items() if value in ("string", "filename")}
    speaking = [n for n, text in texts.items() if files.search(text)]
    assert len(speaking) > 10
    assert [n for n in speaking if not reaches_out(f"--{n}=1")] == []


def test_words_are_options_of_this_release(options):
    assert options.keys() >= _WORDS
