"""docs/compatibility.md: which files of which versions are read, where PyC runs, and the policy."""

from pyc_mlir.artifact.manifest import Manifest
from pyc_mlir.cache.store import KEY_SCHEMA as CACHE
from pyc_mlir.measure.records import Report
from pyc_mlir.pipelines.choices.choices import SCHEMA_VERSION as LOG
from pyc_mlir.pipelines.choices.log import RecipeFile
from pyc_mlir.pipelines.choices.wisdom import SCHEMA_VERSION as WISDOM
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.profile.profile import Profile
from pyc_mlir.runtime.selection.selector import SCHEMA_VERSION as SELECTOR
from pyc_mlir.service.capsule import SCHEMA_VERSION as CAPSULE
from pyc_mlir.tools.docs.templates import filled

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


def page() -> str:
    """Write the page."""
    rows = [f"| {what} | {schema} | {other} | {remedy} |" for what, schema, other, remedy in _FILES]
    return filled("compatibility", files="".join(f"{row}\n" for row in rows))
