# Stands in for a package that checks of types do without: every name in it is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
