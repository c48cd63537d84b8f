"""Write all generated pages of docs/, or check that they are current.

    python test/py/support/pages.py [--check]

gen_docs makes the pages of the product; those of the tests are made here: errors of functions
(function_errors.py), slices of the full run (slices.py), proofs (equivalence_campaign.py).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
import equivalence_campaign
import function_errors_page
import slices_page

from pyc_mlir.tools.docs import gen_docs

PAGES = {
    **function_errors_page.PAGES,
    **slices_page.PAGES,
    **equivalence_campaign.PAGES,
}


def main(argv: Sequence[str]) -> int:
    """Write or check the pages; 1 if one is stale or left over, or a stored report is malformed."""
    status = max(gen_docs.main(argv), gen_docs.main(argv, PAGES))
    if status:
        return status
    written = {*gen_docs.generate(gen_docs.DOCS), *gen_docs.generate(gen_docs.DOCS, PAGES)}
    stored = set((gen_docs.DOCS / "results").glob("*.md")) - {gen_docs.DOCS / "results/README.md"}
    for path in sorted(stored - written):
        print(f"docs/results/{path.name}: expected a generated page, nothing writes it; delete it")
    return int(bool(stored - written))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
