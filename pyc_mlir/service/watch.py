"""A watchdog for calls that hang."""

import threading
from collections.abc import Callable
from time import perf_counter

Report = Callable[[int, float], None]


class Watch:
    """A thread that looks for calls which run longer than some seconds.

    running: by thread when the call that it is at began; calls write it. hung: the threads whose
    calls run too long now. `report` is told of each once: the thread, and for how long.
    """

    def __init__(self, seconds: float, report: Report) -> None:
        self.seconds = seconds
        self.running: dict[int, float] = {}
        self.hung: frozenset[tuple[int, float]] = frozenset()
        self._report = report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="pyc-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(self.seconds / 4):
            now = perf_counter()
            calls = list(self.running.items())
            hung = frozenset(call for call in calls if now - call[1] > self.seconds)
            for thread, began in hung - self.hung:
                self._report(thread, now - began)
            self.hung = hung

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()
