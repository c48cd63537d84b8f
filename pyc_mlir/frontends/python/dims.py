"""Dynamic dimensions as opaque symbols that a function may pass on but not compute with."""

from typing import Any, NoReturn

from pyc_mlir.frontends.python.source import untraceable


class Dim:
    """The size of a dynamic dimension, as `x.shape` shows it.

    Legal: as an entry of the shapes given to reshape, broadcast_to, full_like and `nn.iota`, as a
    factor or divisor of an array (``x.sum(0) / x.shape[0]``), and compared with itself.
    Everything that needs its value raises PycError (UNTRACEABLE).
    """

    __slots__ = ("axis", "name", "source", "witness")

    def __init__(self, name: str, witness: int) -> None:
        self.name = name
        # A large number that stands for the size wherever shapes are compared; see `Tracer`.
        self.witness = witness
        # An MLIR value and its axis that have this size.
        self.source: Any = None
        self.axis = 0

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise untraceable(
            f"the size `{self.name}` is not known while tracing",
            "use -1 or the dimension itself in a reshape, `np.zeros_like`, `np.full_like` and "
            "`pyc_mlir.nn.iota` (for `np.arange`) to make arrays, or give the dimension a size in "
            "the function's specs",
            "size",
        )

    def _arithmetic(self, other: Any) -> Any:
        # A traced array takes over with its reflected operator.
        return NotImplemented if hasattr(other, "__array_function__") else self._refuse()

    __bool__ = __int__ = __float__ = __complex__ = __index__ = __array__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __round__ = __trunc__ = __floor__ = __ceil__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _arithmetic
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _arithmetic
    __mod__ = __rmod__ = __pow__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = _arithmetic
    __divmod__ = __rdivmod__ = __matmul__ = __rmatmul__ = _arithmetic
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _arithmetic
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _arithmetic

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim) and other.witness == self.witness:
            return True
        return self._refuse() if isinstance(other, (int, Dim)) else False

    def __hash__(self) -> int:
        return hash(self.witness)

    def __format__(self, spec: str) -> str:
        """The name; a format of numbers needs the value. Raises PycError (UNTRACEABLE)."""
        return self._refuse() if spec and spec[-1] in "bcdoxXneEfFgG%" else format(self.name, spec)

    def __repr__(self) -> str:
        return self.name
