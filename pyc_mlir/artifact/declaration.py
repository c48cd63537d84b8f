"""Check that the functions of a vmfb have the types that the manifest declares.

IREE writes into the reflection of each function of its native ABI how it was declared
(``iree.abi.declaration``): ``sync func @main(%input0: tensor<?x8xf32>) -> (%output0: ...)``. Guards
and results go by the manifest, so the two must be the same before anything is called.
"""

import re
from collections.abc import Mapping, Sequence

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode

DECLARATION = "iree.abi.declaration"
_RESULTS = ") -> ("
_UNSIGNED = re.compile(r"(?<=[x<])ui(?=\d+>)")
_TYPE = re.compile(r"%[^\s:,()]+: ([a-z]\w*<[^>]*>|[^\s,(){}]+)")


def require_declared(
    name: str, reflection: Mapping[str, str], signature: Signature, *, inputs_only: bool = False
) -> None:
    """Raise PycError (BAD_ARTIFACT) unless the function is declared with this signature.

    inputs_only: of the results only their number and element types have to agree.
    """
    text = reflection.get(DECLARATION)
    if text is None:
        raise _refused(name, "a function that is declared for callers", "one that is not")
    # Without results there is no arrow; names are none of tensors.
    taken, _, given = text.partition(_RESULTS)
    _, _, taken = taken.partition("(")
    _require_same(name, "inputs", _TYPE.findall(taken), signature.inputs)
    found = _TYPE.findall(given)
    if inputs_only:
        outputs = [_elements(text) for text in found]
        wanted = [_elements(text) for text in _stored([_text(a) for a in signature.outputs])]
        if outputs != wanted:
            expected = f"results of the manifest's types ({', '.join(wanted):.200})"
            raise _refused(name, expected, f"({', '.join(found):.200})")
        return
    _require_same(name, "outputs", found, signature.outputs)


def _require_same(
    name: str, side: str, declared: Sequence[str], arguments: Sequence[SignatureEntry]
) -> None:
    wanted = [_text(argument) for argument in arguments]
    if _stored(declared) != _stored(wanted):
        raise _refused(
            name,
            f"the {side} of the manifest ({', '.join(wanted):.200})",
            f"({', '.join(declared):.200})",
        )


def _elements(text: str) -> str:
    """Return a tensor type's rank and element type."""
    dims = text.removeprefix("tensor<").removesuffix(">").split("x")
    return f"{len(dims) - 1} {dims[-1]}"


def _stored(types: Sequence[str]) -> list[str]:
    """IREE holds unsigned integers as those without a sign."""
    return [_UNSIGNED.sub("i", text) for text in types]


def _text(argument: SignatureEntry) -> str:
    """Return the type with ``?`` for each dynamic dimension, named or not."""
    dims = tuple(d if isinstance(d, int) else None for d in argument.shape)
    return str(SignatureEntry(argument.name, argument.dtype, dims))


def _refused(name: str, expected: str, got: str) -> PycError:
    return PycError(
        ReasonCode.BAD_ARTIFACT,
        f"vmfb: expected of `{name}` {expected}, got {got}; compile it again",
    )
