"""Import jaxprs as pyc programs, equation by equation.

    module = import_jaxpr(closed_jaxpr, names, source)

Functions called (`jit`, `custom_jvp_call`, `checkpoint`) are inlined; loops of known length are
unrolled; both branches of a condition that is not known are computed, and one is selected: every
pyc op is pure. Constants that the function closes over become `pyc.constant`; each op has the
location of the Python line that made it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import numpy as np
from jax._src import source_info_util  # pyright: ignore[reportMissingImports]
from jax._src.interpreters import partial_eval  # pyright: ignore[reportMissingImports]
from jax.extend import core  # pyright: ignore[reportMissingImports]

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.importer import HloImporter
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import (
    MISSING,
    Argument,
    Ignored,
    Lift,
    SourceNode,
    Stated,
)
from pyc_mlir.frontends.importing.shaping import chain, take
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.jax.keys import constant_of, on_words, physical
from pyc_mlir.frontends.jax.primitives import IGNORED, PRIMITIVES

# Primitives that call one jaxpr with their operands: the parameter that holds it.
_CALLS: dict[str, str] = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "core_closed_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
}
_DERIVATIVE = "of the derivative, which JAX has taken where it was asked for"
_BATCHING = "of batching, which JAX has done where it was asked for"
_PLACE = "where arrays lie; PyC has one device"
_XLA = "a choice of how XLA compiles"
_TRACING = "read while JAX traces"
# Parameters of primitives with jaxprs in them that change no result.
_IGNORED_OF_CALLS: Ignored = {
    **dict.fromkeys(("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees"), _DERIVATIVE),
    **dict.fromkeys(("symbolic_zeros", "linear", "differentiated", "policy"), _DERIVATIVE),
    **dict.fromkeys(("rule", "in_tree", "out_tree"), _BATCHING),
    **dict.fromkeys(("in_shardings", "out_shardings", "ctx_mesh", "donated_invars"), _PLACE),
    **dict.fromkeys(("in_layouts", "out_layouts", "compiler_options_kvs"), _XLA),
    **dict.fromkeys(("inline", "prevent_cse", "unroll", "_split_transpose"), _XLA),
    **dict.fromkeys(("keep_unused", "name", "num_consts"), _TRACING),
    "version": "composites are known by name, and their parameters are read",
}


def import_jaxpr(
    jaxpr: Any, arguments: Sequence[str], results: Sequence[str], source: str, *,
    context: ir.Context | None = None, name: str = "main",
) -> ir.Module:  # fmt: skip
    """Return the pyc module with one function `name` that computes a closed jaxpr.

    arguments, results: names for messages and for the signature.
    source: the function's name in messages.
    Raises UnsupportedModel for equations that PyC lacks; all of them are listed.
    """
    active = new_context() if context is None else context
    load(active)
    with active, ir.Location.unknown():
        return _JaxprImporter(jaxpr, source).run(name, arguments, results)


def without_dead_code(closed: Any) -> Any:
    """Drop the equations that no result of a closed jaxpr needs; arguments and results stay.

    Inner jaxprs too: a loop that carries a random key which nothing draws from loses the key.
    """
    jaxpr, _ = partial_eval.dce_jaxpr(
        closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True
    )
    return closed.replace(jaxpr=jaxpr)


def kept_arguments(closed: Any) -> list[int]:
    """Return the arguments to keep: all but unread ones of types that PyC lacks."""
    jaxpr = closed.jaxpr
    read = {v for e in jaxpr.eqns for v in e.invars if not isinstance(v, core.Literal)}
    read |= {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    return [
        i
        for i, var in enumerate(jaxpr.invars)
        if var in read or dtype_name(_numpy(physical(var.aval).dtype)) in DTYPES
    ]


class _JaxprImporter(HloImporter):
    """State of one import."""

    def __init__(self, closed: Any, source: str) -> None:
        self.closed = closed
        self.consts = [constant_of(c) for c in closed.consts]
        super().__init__(source, sum(c.nbytes for c in self.consts))
        # The equation that is imported by a jaxpr of its own.
        self._within: SourceNode | None = None
        # The call around the equation: JAX's own functions are traced once, for all their callers.
        self._around: SourceNode | None = None
        self._extents: dict[Any, Extent] = {}

    def run(self, name: str, arguments: Sequence[str], results: Sequence[str]) -> ir.Module:
        """Build the module; raise UnsupportedModel after all equations were tried."""
        jaxpr = self.closed.jaxpr
        kept = kept_arguments(self.closed)
        declared = [self._argument(arguments[i], physical(jaxpr.invars[i].aval)) for i in kept]

        def body(values: Sequence[ir.Value]) -> list[tuple[str, Any]]:
            given = dict(zip(kept, values, strict=True))
            every = [given.get(i, MISSING) for i in range(len(jaxpr.invars))]
            return list(zip(results, self._inline(self.closed, every), strict=True))

        return self.function(name, declared, body)

    def _argument(self, label: str, aval: Any) -> Argument:
        dtype = aval.dtype
        if dtype_name(_numpy(dtype)) not in DTYPES:
            raise PycError(
                ReasonCode.UNSUPPORTED_DTYPE,
                f"{self.source}: argument `{label}`: expected one of {', '.join(DTYPES)}, "
                f"got {dtype}",
            )
        for dim in aval.shape:
            if not isinstance(dim, int):
                self._extents.setdefault(dim, SymbolicSize(1, (str(dim),)))
        return Argument(label, _numpy(dtype), tuple(map(self.extent, aval.shape)))

    def _inline(self, jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
        """Import a jaxpr's equations at this place; return its results for the operands."""
        closed = jaxpr if hasattr(jaxpr, "consts") else None
        inner = jaxpr.jaxpr if closed is not None else jaxpr
        values: dict[Any, Any] = dict(zip(inner.invars, operands, strict=True))
        if closed is not None:
            consts = self.consts if closed is self.closed else map(constant_of, closed.consts)
            values.update(zip(inner.constvars, consts, strict=True))

        def read(var: Any) -> Any:
            if isinstance(var, core.Literal):
                aval: Any = var.aval
                return np.asarray(var.val, aval.dtype)
            return values[var]

        for equation in inner.eqns:
            given = [read(v) for v in equation.invars]
            outputs = self._equation(equation, given)
            for i, var in enumerate(equation.outvars):
                values[var] = outputs[i] if i < len(outputs) else MISSING
        return [read(v) for v in inner.outvars]

    def _equation(self, equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        name, p = equation.primitive.name, equation.params
        self.count += 1
        site = self._within or self._site(equation)
        try:
            if name in _CALLS or name in _STRUCTURED:
                return self._with_jaxprs(site, name, p, operands)
            words = on_words(equation)
            if words is not None:
                return self._replaced(site, words, operands)
        except PycError as error:
            return self.refused(site, error)
        handler = PRIMITIVES.get(name)
        if handler is None:
            return self.unknown(site, "primitive")
        resolved = {key: self._resolved(value) for key, value in p.items()}
        parameters = Stated(resolved, "parameter", IGNORED)
        outputs = self.importer.node(
            site, operands, lambda b, lift: handler(Call(b, operands, lift), parameters), parameters
        )
        self._note_dims(equation, outputs)
        return outputs

    def _replaced(self, site: SourceNode, jaxpr: Any, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of an equation by another jaxpr, whose ops are at the equation."""
        outer, self._within = self._within, site
        try:
            return self._inline(jaxpr, operands)
        finally:
            self._within = outer

    def _with_jaxprs(
        self, site: SourceNode, name: str, p: Mapping[str, Any], operands: Sequence[Any]
    ) -> Sequence[Any]:
        """Return the results of a primitive that calls jaxprs. Raises PycError for refused ones."""
        stated = Stated(p, "parameter", _IGNORED_OF_CALLS)
        if name in _CALLS:
            inner = stated[_CALLS[name]]
            stated.require_all_read()
            outer, self._around = self._around, site
            try:
                return self._inline(inner, operands)
            finally:
                self._around = outer
        if any(o is MISSING for o in operands):
            self.importer.untried.append(site.place)
            return ()
        out = _STRUCTURED[name](self, site, stated, operands)
        stated.require_all_read()
        return out

    def _site(self, equation: Any) -> SourceNode:
        """Return the line of Python that made an equation."""
        frame = source_info_util.user_frame(equation.source_info.traceback)
        stack = str(equation.source_info.name_stack)
        name = f"{stack}/{equation.primitive.name}" if stack else equation.primitive.name
        if frame is None:
            around = self._around
            if around is None or not around.line:
                return SourceNode(name, equation.primitive.name, self.count)
            return replace(around, name=name, op=equation.primitive.name)
        place = ir.Location.file(frame.file_name, frame.start_line, frame.start_column)
        where = ir.Location.name(name, place)
        line = f"{frame.file_name}:{frame.start_line}"
        return SourceNode(name, equation.primitive.name, frame.start_line, where, line)

    def _resolved(self, value: Any) -> Any:
        """Return a parameter with symbolic dimensions as sizes."""
        if type(value) is tuple:
            return tuple(self._resolved(v) for v in value)
        return self.extent(value) if _is_symbolic(value) else value

    def extent(self, dim: Any) -> Extent:
        """Return a dimension as a size. Raises PycError for an expression that is no size."""
        if not _is_symbolic(dim):
            return int(dim)
        if dim not in self._extents:
            self._extents[dim] = self._monomial(dim)
        return self._extents[dim]

    def _monomial(self, dim: Any) -> Extent:
        for known, size in list(self._extents.items()):
            for factor in range(1, 65):
                if known * factor == dim:
                    return size * factor
        for one, left in list(self._extents.items()):
            for other, right in list(self._extents.items()):
                if one * other == dim:
                    return left * right
        raise unsupported(f"the dimension {dim}: expected one that an array of the program has")

    def _note_dims(self, equation: Any, outputs: Sequence[Any]) -> None:
        """Remember the sizes of expressions such as b + 1, which a result now has."""
        for var, value in zip(equation.outvars, outputs, strict=False):
            shape = getattr(var.aval, "shape", ())
            if isinstance(value, ir.Value) and any(map(_is_symbolic, shape)):
                for dim, size in zip(shape, self.importer.b.dims(value), strict=True):
                    if _is_symbolic(dim):
                        self._extents.setdefault(dim, size)

    # Control flow.

    def _scan(self, site: SourceNode, p: Stated, operands: Sequence[Any]) -> Sequence[Any]:
        """Import the body once for each step; the steps' results are stacked."""
        constants, carries = p["num_consts"], p["num_carry"]
        consts = operands[:constants]
        carry = list(operands[constants : constants + carries])
        scanned = operands[constants + carries :]
        length = self.extent(p["length"])
        if not isinstance(length, int):
            raise unsupported("a scan over a dynamic dimension")
        stacked: list[list[Any]] = []
        steps = reversed(range(length)) if p["reverse"] else range(length)
        for step in steps:
            self.loops.step(len(p["jaxpr"].jaxpr.eqns))
            rows = [self._row(site, x, step) for x in scanned]
            out = self._inline(p["jaxpr"], [*consts, *carry, *rows])
            carry = out[:carries]
            stacked.append(out[carries:])
        if p["reverse"]:
            stacked.reverse()
        avals = [physical(v.aval) for v in p["jaxpr"].jaxpr.outvars[carries:]]
        columns = [[row[i] for row in stacked] for i in range(len(avals))]
        made = [self._stacked(site, c, a) for c, a in zip(columns, avals, strict=True)]
        return [*carry, *made]

    def _row(self, site: SourceNode, x: Any, step: int) -> Any:
        def row(b: Any, lift: Lift) -> Any:
            return b.squeeze(take(b, lift(0), 0, step, step + 1), 0)

        return self.one(site, [x], row)

    def _stacked(self, site: SourceNode, rows: Sequence[Any], aval: Any) -> Any:
        if not rows:
            return np.zeros((0, *aval.shape), aval.dtype)

        def stack(b: Any, lift: Lift) -> Any:
            return chain(b, [b.expand_dims(lift(i), 0) for i in range(len(rows))], 0)

        return self.one(site, rows, stack)

    def _while(self, site: SourceNode, p: Stated, operands: Sequence[Any]) -> Sequence[Any]:
        """Repeat the body as long as the condition, which must be known at import, holds."""
        of_cond, of_body = p["cond_nconsts"], p["body_nconsts"]
        cond_consts = operands[:of_cond]
        body_consts = operands[of_cond : of_cond + of_body]
        state = list(operands[of_cond + of_body :])
        condition, body = p["cond_jaxpr"], p["body_jaxpr"]
        while True:
            (goes_on,) = self._inline(condition, [*cond_consts, *state])
            if not self.loops.goes_on(goes_on):
                return state
            self.loops.step(len(body.jaxpr.eqns))
            state = self._inline(body, [*body_consts, *state])

    def _cond(self, site: SourceNode, p: Stated, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the known branch's results, or select among the results of all branches."""
        which, given = operands[0], operands[1:]
        branches = p["branches"]
        if isinstance(which, np.ndarray):
            index = min(max(int(which), 0), len(branches) - 1)
            return self._inline(branches[index], given)
        return self.selected(site, which, [self._inline(branch, given) for branch in branches])

    def _composite(self, site: SourceNode, p: Stated, operands: Sequence[Any]) -> Sequence[Any]:
        """Build the op of that name, or the decomposition."""
        given = {key: jax.tree.unflatten(tree, leaves) for key, leaves, tree in p["attributes"]}
        name, decomposition = p["name"], p["jaxpr"]  # a parameter that is not read is refused
        out = self.composite(site, operands, name, given)
        return out or self._inline(decomposition, operands)

    def _dim_as_value(self, site: SourceNode, p: Stated, operands: Sequence[Any]) -> Sequence[Any]:
        """Return a dimension as an i32 scalar."""
        return [self.size(site, self.extent(p["dim"]))]


_STRUCTURED: dict[str, Callable[..., Sequence[Any]]] = {
    "scan": _JaxprImporter._scan,
    "while": _JaxprImporter._while,
    "cond": _JaxprImporter._cond,
    "composite": _JaxprImporter._composite,
    "dim_as_value": _JaxprImporter._dim_as_value,
}


def _is_symbolic(value: Any) -> bool:
    """Return True for a dimension that jax.export.symbolic_shape made."""
    return type(value).__name__ == "_DimExpr"


def _numpy(dtype: Any) -> np.dtype:
    """Return JAX's element type as numpy's; those of random keys have none."""
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(object)
