"""Special methods, which Python calls by itself."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import contextlib
from collections.abc import Callable
from typing import Any

SPECIAL: list[Callable[[], Any]] = []


class Number:
    """Python calls these by itself."""

    def __init__(self, value):
        self.value = value

    def __add__(self, x):
        return x + self.value

    def __neg__(self):
        return -self.value

    def __bool__(self):
        return self.value > 2

    def __float__(self):
        return float(self.value)

    def __index__(self):
        return int(self.value)

    def __eq__(self, other):
        return self.value == other

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other):
        return self.value < other

    def __contains__(self, x):
        return x == self.value

    def __len__(self):
        return int(self.value)

    def __iter__(self):
        return iter([self.value])

    def __getitem__(self, key):
        return self.value * key

    def __enter__(self):
        return self.value

    def __exit__(self, *_):
        pass

    def __matmul__(self, x):
        return x * self.value

    def __format__(self, spec):
        return str(self.value)

    def __reversed__(self):
        return iter([self.value])

    def __missing__(self, key):
        return self.value


def special(name: str, use: Callable[[Any, Any], Any]) -> None:
    """A kind whose function uses a `Number` in one way."""

    def kind():
        n = Number(2)
        yield lambda x: use(n, x)
        n.value = 3

    kind.__name__ = name
    SPECIAL.append(kind)


def _with(n: Any, x: Any) -> Any:
    with n as value:
        return x * value


special("special_add", lambda n, x: n + x)
special("special_neg", lambda n, x: x * -n)
special("special_bool", lambda n, x: x * 2 if n else x)
special("special_float", lambda n, x: x * float(n))
special("special_index", lambda n, x: x * [0, 1, 2, 3][n])
special("special_eq", lambda n, x: x * 2 if n == 2 else x)
special("special_lt", lambda n, x: x * 2 if n < 3 else x)
special("special_contains", lambda n, x: x * 2 if 2 in n else x)
special("special_len", lambda n, x: x * len(n))
special("special_iter", lambda n, x: x * sum(n))
special("special_getitem", lambda n, x: x * n[2])
special("special_with", _with)
special("special_matmul", lambda n, x: n @ x)
special("special_format", lambda n, x: x * float(f"{n}"))
special("special_reversed", lambda n, x: x * next(reversed(n)))


def context_manager_of_a_generator():
    scale = [2.0]

    @contextlib.contextmanager
    def scaled():
        yield scale[0]

    def f(x):
        with scaled() as k:
            return x * k

    yield f
    scale[0] = 3.0
