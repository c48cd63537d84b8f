# Op classes are made by metaprogramming that a type checker cannot follow.
from typing import Any

class Dialect:
    Operation: Any
    def __init_subclass__(cls, *, name: str, **options: Any) -> None: ...
    @classmethod
    def load(cls, *arguments: Any, **options: Any) -> None: ...

def __getattr__(name: str) -> Any: ...
