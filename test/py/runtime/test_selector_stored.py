"""State that selectors of an earlier PyC stored is read, and goes on as it was."""

import gzip
import json
from pathlib import Path

import pytest

from pyc_mlir import Selector
from pyc_mlir.runtime.selection.selector import replay

STORED = Path(__file__).parents[1] / "support/stored"


@pytest.mark.parametrize("policy", ["paired", "thompson", "ucb"])
def test_stored_documents_of_a_selector_are_read(policy, tmp_path):
    """The log of all changes is replayed, what was learned is taken up, the recipe is followed."""
    log = tmp_path / "log.jsonl"
    log.write_bytes(gzip.decompress((STORED / f"{policy}.log.jsonl.gz").read_bytes()))
    changes = (STORED / f"{policy}.events.txt").read_text().splitlines()
    assert [str(event) for event in replay(log)] == changes
    learned = tmp_path / "learned.json"
    learned.write_bytes((STORED / f"{policy}.learned.json").read_bytes())
    again = Selector(policy=policy, path=learned, load=lambda: 0.0)
    again.attach("program")
    route = again.route("cluster", ["a", "b", "c"], [1.0, 0.0, 1.0])
    taken = [route.next().arm for _ in range(10)]
    assert again.events() == () and taken.count(1) >= 8 and 2 not in taken
    stored = json.loads(learned.read_text())["routes"]["cluster"]["contexts"]["quiet"]
    kept = again.learned()["cluster"]["contexts"]["quiet"]
    for name in stored.keys() & {"arms", "good", "incumbent", "spent", "means", "removed"}:
        assert kept[name] == stored[name] or name == "spent"
    fixed = Selector(recipe=STORED / f"{policy}.recipe.json", load=lambda: 0.0)
    route = fixed.route("cluster", ["a", "b", "c"])
    assert {route.next().arm for _ in range(100)} == {1}
