"""Published rules are equal, damaged ones are rejected, and verdicts are kept; needs the data."""

import pytest
from equivalence_campaign import mlir_tv, pyc_pairs, rule_set
from equivalence_rules import DATA

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there")


@pytest.mark.full
@pytest.mark.parametrize("name", ["taso", "tensat"])
def test_all_rules_are_equal(name):
    sound, damaged = rule_set(name)
    assert all(answer.startswith("proof") for answer in sound), sound
    assert "wrong proof" not in damaged, damaged


@pytest.mark.full
def test_rules_with_transfers_are_equal():
    sound, damaged = rule_set("flexflow")
    proofs = sum(n for answer, n in sound.items() if answer.startswith("proof"))
    # One adds halves of a concatenation, one fits no shapes.
    assert sound.total() - proofs == 2, sound
    assert "wrong proof" not in damaged, damaged


@pytest.mark.full
def test_verdicts_on_programs_are_kept():
    for answer, number in pyc_pairs().items():
        different = answer.startswith("different")
        assert different != (": proof" in answer), (answer, number)


@pytest.mark.full
def test_no_wrong_proof_on_pairs_of_mlir_tv():
    for answer in mlir_tv():
        assert not answer.startswith("does not refine: proof"), answer
