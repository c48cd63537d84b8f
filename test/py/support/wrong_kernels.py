"""A family of kernels that compute the wrong thing, as a plugin for tests: log-softmax for softmax.

It is never preferred: only a recipe or a policy takes it.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pyc_mlir.pipelines.kernels.families import rows as rows_family
from pyc_mlir.pipelines.kernels.match import KernelOffer
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

NAME = "wrong"


def _match(work: Work, target: Target) -> Sequence[KernelOffer]:
    return [
        replace(o, knobs=replace(o.knobs, operation="log_softmax"), worth=False)
        for o in rows_family.match(work, target)
        if o.knobs.operation == "softmax"
    ]


FAMILY = replace(rows_family.FAMILY, name=NAME, match=_match)


class Plugin:
    name, value = NAME, "wrong_kernels:FAMILY"

    def load(self):
        return FAMILY


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the family known until the test ends."""
    place = "pyc_mlir.pipelines.kernels.registry.registered"
    monkeypatch.setattr(place, lambda group: [Plugin()])
