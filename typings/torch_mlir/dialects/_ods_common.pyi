# Re-exports a binary module that ships no stubs.
from typing import Any

def __getattr__(name: str) -> Any: ...
