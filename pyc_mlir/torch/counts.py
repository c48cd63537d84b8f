"""The counts of `torch.compile(backend="pyc")` in this process."""

import threading
from dataclasses import dataclass, fields

_LOCK = threading.Lock()


@dataclass
class TorchStats:
    """Counts since the process began, or since `reset_stats`.

    graphs: compiled, by kind: `inference`, `forward` and `backward`.
    recompiled: of them those for a frame that was compiled before, since a guard of torch failed:
        another size, element type or value. Size 1 always is a case of its own.
    refrozen: compiled again since a frozen weight was replaced or written.
    refused: graphs that PyC could not compile. `fallbacks` of them were left to torch, as
        ``options={"fallback": "eager"}`` asks.
    graph_breaks: places where torch itself cut a function, by its own count.
    """

    inference: int = 0
    forward: int = 0
    backward: int = 0
    recompiled: int = 0
    refrozen: int = 0
    refused: int = 0
    fallbacks: int = 0
    graph_breaks: int = 0

    @property
    def graphs(self) -> int:
        """All graphs that were compiled."""
        return self.inference + self.forward + self.backward


_STATS = TorchStats()


def count(name: str) -> None:
    """Add one to a count."""
    with _LOCK:
        setattr(_STATS, name, getattr(_STATS, name) + 1)


def stats() -> TorchStats:
    """Return the current counts."""
    from torch._dynamo.utils import counters  # pyright: ignore[reportMissingImports]

    with _LOCK:
        values = {f.name: getattr(_STATS, f.name) for f in fields(TorchStats)}
    values["graph_breaks"] = sum(counters["graph_break"].values())
    return TorchStats(**values)


def reset_stats() -> None:
    """Start counting anew; torch's own counters too."""
    from torch._dynamo.utils import counters  # pyright: ignore[reportMissingImports]

    with _LOCK:
        for field in fields(TorchStats):
            setattr(_STATS, field.name, 0)
    counters["graph_break"].clear()
