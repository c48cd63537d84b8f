"""Import one file of the compiler with a change in it: `PYC_MUTANT` says which (test/mutate.py).

Python imports this module first where its folder is on PYTHONPATH, in child processes too. The file
itself stays as it is, and no bytecode of the changed text is written.
"""

import json
import os
from importlib.machinery import SourceFileLoader
from types import CodeType

MUTANT = json.loads(os.environ["PYC_MUTANT"])
get_code = SourceFileLoader.get_code


def mutated(self: SourceFileLoader, fullname: str) -> CodeType | None:
    """Return the code of a module; of the mutant's file, that of the changed text."""
    if os.path.realpath(self.path) != MUTANT["file"]:
        return get_code(self, fullname)
    text = self.get_data(self.path)
    changed = text[: MUTANT["start"]] + MUTANT["after"].encode() + text[MUTANT["end"] :]
    return self.source_to_code(changed, self.path)


SourceFileLoader.get_code = mutated
