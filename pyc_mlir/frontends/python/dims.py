"""Dynamic dimensions as symbols that a function may compute with, but whose value it never sees."""

from collections.abc import Callable
from typing import Any, NoReturn

from pyc_mlir.frontends.python.source import untraceable

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
# Numbers that leave a size as it is.
_NEUTRAL = {"add": 0, "mul": 1, "floordiv": 1}


def _binary(op: str, reflected: bool = False) -> Callable[["DynamicDim", Any], Any]:
    def method(self: "DynamicDim", other: Any) -> Any:
        if type(other) is not int and not isinstance(other, DynamicDim):
            return self._arithmetic(other)
        left, right, name = *((other, self) if reflected else (self, other)), op
        if name == "sub" and type(right) is int and right <= 0:
            name, right = "add", -right
        if type(right) is int and _NEUTRAL.get(name) == right:
            return self
        if name == "mul" and type(right) is int and right == 0:
            return 0
        if name in ("floordiv", "mod") and not (type(right) is int and right > 0):
            raise untraceable(
                f"`{left} {_SIGNS[name]} {right}`", "divide sizes by positive integers", "size"
            )
        return self.tracer.sized(name, _SIGNS[name], left, right)

    return method


class DynamicDim:
    """The size of a dynamic dimension, as `x.shape` shows it, or one computed from such sizes.

    Legal: ``+ - * // %`` with integers and other sizes; as an entry of the shapes given to reshape,
    broadcast_to, full_like, `np.arange(n, like=x)` and `nn.iota`; as an operand of an array
    (``x.sum(0) / x.shape[0]``); as a bound of a slice of the dimension it comes from; compared with
    itself. Everything that needs its value raises PycError (UNTRACEABLE).

    witness: a large number that stands for the size wherever shapes are compared; see `Tracer`.
    source, axis: an array that has this size, and its axis.
    form: of one computed from another size n and an integer c, ("sub", witness of n, c); else None.
    """

    __slots__ = ("_exact", "_make", "axis", "form", "name", "source", "tracer", "witness")

    def __init__(self, name: str, witness: int, tracer: Any) -> None:
        self.name = name
        self.witness = witness
        self.tracer = tracer
        self.source: Any = None
        self.axis = 0
        self.form: tuple[str, int, int] | None = None
        self._exact: Callable[[], Any] | None = None
        self._make: Callable[[], Any] | None = None

    @classmethod
    def computed(
        cls,
        name: str,
        witness: int,
        tracer: Any,
        exact: Callable[[], Any],
        make: Callable[[], Any] | None,
    ) -> "DynamicDim":
        """Make a size that is computed from others.

        exact: gives its value as a rank-0 i64. make: gives a vector of that length, or None if
        there is no way to make one.
        """
        made = cls(name, witness, tracer)
        made._exact, made._make = exact, make
        return made

    def value(self) -> Any:
        """Return the size as a rank-0 i64 of the program."""
        return self._exact() if self._exact else self.tracer.size(self.source, self.axis)

    def holder(self) -> Any:
        """Return an array that has this size along `axis`.

        Raises PycError (UNTRACEABLE) for a size of which no array can be made.
        """
        if self.source is None and self._make is not None:
            self.source = self._make()
        if self.source is None:
            raise untraceable(
                f"no array can be made of the length `{self.name}`",
                "lengths are sums and products of sizes, and what `- c` and `// c` leave of one "
                "for an integer c; use -1 in a reshape",
                "size",
            )
        return self.source

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise untraceable(
            f"the size `{self.name}` is not known while tracing",
            "use -1 or the dimension itself in a reshape, `np.zeros_like`, `np.full_like`, "
            "`np.arange(n, like=x)`, `pyc_mlir.nn.arange`, `nn.linspace` and `nn.iota` to make "
            "arrays, or give the dimension a size in the function's specs",
            "size",
        )

    def _arithmetic(self, other: Any) -> Any:
        # A traced array takes over with its reflected operator.
        return NotImplemented if hasattr(other, "__array_function__") else self._refuse()

    __bool__ = __int__ = __float__ = __complex__ = __index__ = __array__ = _refuse
    __pos__ = __abs__ = __invert__ = _refuse
    __round__ = __trunc__ = __floor__ = __ceil__ = _refuse
    __truediv__ = __rtruediv__ = _arithmetic
    __pow__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = _arithmetic
    __divmod__ = __rdivmod__ = __matmul__ = __rmatmul__ = _arithmetic
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _arithmetic
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _arithmetic

    __add__ = __radd__ = _binary("add")
    __mul__ = __rmul__ = _binary("mul")
    __sub__, __rsub__ = _binary("sub"), _binary("sub", reflected=True)
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _binary("floordiv", reflected=True)
    __mod__, __rmod__ = _binary("mod"), _binary("mod", reflected=True)

    def __neg__(self) -> Any:
        return 0 - self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DynamicDim) and other.witness == self.witness:
            return True
        return self._refuse() if isinstance(other, (int, DynamicDim)) else False

    def __hash__(self) -> int:
        return hash(self.witness)

    def __format__(self, spec: str) -> str:
        """Return the name; a format of numbers needs the value. Raises PycError (UNTRACEABLE)."""
        return self._refuse() if spec and spec[-1] in "bcdoxXneEfFgG%" else format(self.name, spec)

    def __repr__(self) -> str:
        return self.name
