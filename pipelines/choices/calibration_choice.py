"""The decision that a compile goes by a calibration, and whether a recipe allows it.

A recipe that was made under a calibration replays under that one only: knobs and grids of kernels
follow from the target's figures, not from sites of their own, so that the same choices under other
figures would be another program without a word. A recipe that names no calibration (a part of a
log, or one made with published figures) may be used under any; the log then names it.
"""

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Recipe, Site
from pyc_mlir.pipelines.choices.evidence import ContentHash
from pyc_mlir.pipelines.target.calibration import Calibration

SITE = Site("calibration", "module")
PUBLISHED = Alternative("published", reason="the target's published figures")


def record_calibration(
    calibration: Calibration | None, recipe: Recipe | None
) -> tuple[Decision, ...]:
    """Return the decision at `SITE`; none if the target's figures are published.

    Raises PycError (RECIPE_MISMATCH) for a recipe that was made under another calibration.
    """
    wanted = None if recipe is None else recipe.choices.get(SITE.key)
    label = PUBLISHED.name if calibration is None else calibration.label
    if wanted not in (None, label):
        raise PycError(
            ReasonCode.RECIPE_MISMATCH,
            f"{SITE.key}: expected the calibration `{wanted}` that the recipe was made under, got "
            f"`{label}`; compile with that file, or make the recipe again",
        )
    if calibration is None:
        return ()
    measured = Alternative(label, reason=f"measured on {calibration.machine.cpu}")
    grounds = (ContentHash(calibration.hash, calibration.name),)
    # Not a policy's choice: the caller gave the file.
    return (Decision(SITE, label, (measured, PUBLISHED), "caller", grounds=grounds),)
