"""docs/compatibility.md: which files of which versions are read, where PyC runs, and the policy."""

from pyc_mlir.artifact.manifest import Manifest
from pyc_mlir.cache.key import SCHEMA_VERSION as CACHE
from pyc_mlir.measure.records import Report
from pyc_mlir.pipelines.choices.choices import SCHEMA_VERSION as LOG
from pyc_mlir.pipelines.choices.recipe_file import RecipeFile
from pyc_mlir.pipelines.choices.wisdom import SCHEMA_VERSION as WISDOM
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.profile.profile import Profile
from pyc_mlir.runtime.selection.selector import SCHEMA_VERSION as SELECTOR
from pyc_mlir.service.capsule import SCHEMA_VERSION as CAPSULE

_AGAIN = "compile the program again"
# What it is, its schema, what is done with another one, the remedy.
_FILES = (
    ("program (`.vmfb`), its manifest", Manifest.schema, "refused, BAD_ARTIFACT", _AGAIN),
    ("log of decisions and runs", LOG, "refused, BAD_ARGUMENT", _AGAIN),
    ("recipe", RecipeFile.schema, "refused, BAD_ARGUMENT", "write it again from a log"),
    ("wisdom", WISDOM, "refused, BAD_WISDOM", "`pyc-tune export` from the database"),
    ("calibration", Calibration.schema, "refused, BAD_ARGUMENT", "`pyc-doctor --calibrate`"),
    ("profile", Profile.schema, "refused, BAD_ARGUMENT", "`pyc-run --profile` again"),
    (
        "capsule of a service",
        CAPSULE,
        "refused, BAD_ARTIFACT",
        "replay it with the PyC that wrote it",
    ),
    (
        "state of a selector",
        SELECTOR,
        "not read; an event of the selector says so",
        "none: it learns anew",
    ),
    ("recipe and log of a selector", SELECTOR, "refused, BAD_ARGUMENT", "freeze, export again"),
    ("report of a benchmark", Report.schema, "refused, BAD_ARGUMENT", "measure again"),
    ("entry of the compile cache", CACHE, "not found; the program is compiled again", "none"),
)
_TEXT = """\
# Compatibility

## Files

Every file that PyC writes names the version of its schema. PyC reads the one version below and
refuses every other one with a reason code; nothing is guessed.

| file | schema | another one is | remedy |
|---|---|---|---|
{files}
The [benchmark database](evidence.md) is the exception: its measurements cannot be made again. A
database of any earlier schema is brought to the newest one when it is opened, and one of a newer
PyC is refused.

A program names the release of IREE's runtime that it was compiled for. Under another release it
loads with a warning (RUNTIME_DIFFERS) where that runtime accepts it.

## Systems

| system | compiling | running |
|---|---|---|
| Linux x86-64 with AVX2 or AVX-512, Python 3.11 or newer | tested | tested |
| Linux x86-64 with CUDA | tested without the device | where a device is there: `make gpu` |
| Linux x86-64 with Vulkan | tested without the device | tested on a software device |
| macOS, Windows, Linux on other processors | no | untested; the base install needs IREE's runtime |

## Deprecation

The public interface is the names of `pyc_mlir.__all__` and what their docstrings describe, the
command lines, the reason codes, the names of the [metrics](service.md#health-log-and-numbers), and
the files above.

- Before 1.0 a minor version may change any of them. [CHANGELOG](../CHANGELOG.md) says what has
  changed, and how to follow, under `Changed` or `Removed`.
- From 1.0 on a public name that is to be removed warns (`DeprecationWarning`, with what takes its
  place) for at least one minor version, and is removed in the next major one. Reason codes and
  metrics are never used again with another meaning.
- Files follow their schema, not the version: what cannot be read is refused, and can be made again.
- There are no shims: what is deprecated works as before until it is removed.
"""


def page() -> str:
    """Write the page."""
    rows = [f"| {what} | {schema} | {other} | {remedy} |" for what, schema, other, remedy in _FILES]
    return _TEXT.format(files="".join(f"{row}\n" for row in rows))
