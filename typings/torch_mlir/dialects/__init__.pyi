# Generated op classes whose bases live in a binary module without stubs.
from typing import Any

def __getattr__(name: str) -> Any: ...
