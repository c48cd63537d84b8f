"""Random chains of calls, special values included, pass their own check: no false refusal."""

import pytest
from compiled import OwnKernels
from conftest import FULL
from random_chains import draw_chain

from pyc_mlir.api import build
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError

COUNT = 240 if FULL else 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("batch", range(3))
def test_no_chain_is_refused(batch: int):
    refused = []
    for seed in range(batch, COUNT, 3):
        chain = draw_chain(seed)
        options = make_options(check=True, policy=OwnKernels() if seed % 3 == 0 else None)
        try:
            made = build(chain, [chain.spec], options)
        except PycError as error:
            refused.append(f"seed {seed}: {chain}: {error}")
            continue
        assert made.checks is not None and made.checks.check is not None
        if made.checks.check.unchecked is None:
            assert "agrees with 3 of 3" in made.checks.check.function, f"seed {seed}: {chain}"
    assert not refused, "\n".join(refused)


def test_chains_have_every_step_and_type():
    chains = [draw_chain(seed) for seed in range(200)]
    assert {c.kind for c in chains} == {"f16", "bf16", "f32", "f64"}
    assert len({name for c in chains for name in c.names}) > 31
