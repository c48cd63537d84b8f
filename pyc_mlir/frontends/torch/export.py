"""From a PyTorch module and its inputs to a decomposed `ExportedProgram` with named dimensions.

    model = from_torch(module, (TensorSpec("f32", "batch", 784),))

Inputs are tensors, arrays or specs, in whatever trees the module takes. A spec's named dimensions
are dynamic; everything else is static. torch specializes sizes 0 and 1, so that the examples that
are made of specs have other sizes.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.frontends.torch import ops as torch_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.torch.ops.handler import HANDLERS

# Sizes of examples in place of named dimensions: primes, so that no two products agree.
_EXAMPLE_SIZES = (5, 7, 11, 13, 17, 19, 23, 29)
_REASON_CHARACTERS = 600


@dataclass(frozen=True)
class TorchModel:
    """A program of torch that is ready to be imported; `pyc_mlir.compile` takes it.

    program: the decomposed ExportedProgram.
    name: what messages call it.
    names: torch's symbols of sizes (``s77``) -> the user's names.
    inputs, outputs: names of the leaves of the inputs and results, in torch's order.
    """

    program: Any
    name: str
    names: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def from_torch(
    source: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
) -> TorchModel:
    """Export a module, a function of tensors, or take an ExportedProgram.

    args, kwargs: what the module is called with: tensors, numpy arrays, or `TensorSpec`s whose
        named dimensions are dynamic; plain values are compiled in.
    dynamic_shapes: as of `torch.export.export`, in place of named dimensions.
    strict: as of `torch.export.export`: trace Python's bytecode.

    Raises PycError: UNTRACEABLE with torch's own reason where the export fails, BAD_ARGUMENT.
    """
    import torch  # pyright: ignore[reportMissingImports]

    if isinstance(source, torch.export.ExportedProgram):
        return _decomposed(source, type(source).__name__, {})
    name = getattr(source, "__name__", None) or type(source).__name__
    module = source if isinstance(source, torch.nn.Module) else _module_of(source)
    examples = _Examples(dynamic_shapes is not None)
    args = tuple(examples.of(a) for a in args)
    kwargs = {k: examples.of(v) for k, v in (kwargs or {}).items()}
    if dynamic_shapes is None and examples.sizes:
        dynamic_shapes = _shapes(module, args, kwargs, examples)
    program = _exported(module, args, kwargs, dynamic_shapes, strict, name)
    return _decomposed(program, name, examples.names_in(program))


def _module_of(function: Callable[..., Any]) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Function().eval()


class _Examples:
    """Tensors in place of specs and arrays, and which of their dimensions are named."""

    def __init__(self, allows_torch_dims: bool) -> None:
        self.sizes: dict[str, int] = {}
        self.dims: dict[int, TensorSpec] = {}
        self._kept: list[Any] = []

    def of(self, tree: Any) -> Any:
        """Return the tree with a tensor for each spec and array."""
        from torch.utils._pytree import tree_map  # pyright: ignore[reportMissingImports]

        return tree_map(self._leaf, tree)

    def _leaf(self, leaf: Any) -> Any:
        import torch  # pyright: ignore[reportMissingImports]

        if isinstance(leaf, TensorSpec):
            shape = [self._size(d) for d in leaf.dims]
            made = torch.zeros(shape, dtype=_torch_dtype(leaf.dtype))
            if any(not isinstance(d, int) for d in leaf.dims):
                self.dims[id(made)] = leaf
                self._kept.append(made)
            return made
        if isinstance(leaf, np.ndarray | np.generic):
            return torch.from_numpy(np.array(leaf))
        return leaf

    def _size(self, dim: int | str | None) -> int:
        if isinstance(dim, int):
            return dim
        if dim is None:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                "inputs: expected names for dynamic dimensions, got None; torch relates sizes by "
                "their names",
            )
        index = len(self.sizes)
        # More than eight names are rare: larger odd sizes follow.
        beyond = _EXAMPLE_SIZES[-1] + 2 * (index - len(_EXAMPLE_SIZES) + 1)
        size = _EXAMPLE_SIZES[index] if index < len(_EXAMPLE_SIZES) else beyond
        return self.sizes.setdefault(dim, size)

    def names_in(self, program: Any) -> dict[str, str]:
        """torch's symbols -> names, from the placeholders of an exported program.

        Raises PycError (UNTRACEABLE) for a named dimension that the model fixes.
        """
        values = [
            n.meta["val"]
            for n in program.graph.find_nodes(op="placeholder")
            if n.name in set(program.graph_signature.user_inputs)
        ]
        found: dict[str, str] = {}
        specs = list(self.dims.values())
        tensors = [v for v in values if hasattr(v, "shape")]
        sized = [v for v in tensors if any(not _is_fixed(d) for d in v.shape)]
        if len(sized) < len(specs):
            raise PycError(
                ReasonCode.UNTRACEABLE,
                f"export: expected {len(specs)} inputs with dynamic dimensions, got {len(sized)}; "
                "the model fixes some of them: give sizes for those",
            )
        for value, spec in zip(sized, specs, strict=False):
            for dim, size in zip(spec.dims, value.shape, strict=True):
                if not isinstance(dim, str):
                    continue
                if _is_fixed(size):
                    raise PycError(
                        ReasonCode.UNTRACEABLE,
                        f"export: the model fixes the dimension `{dim}` to {size}; give that size "
                        "in place of the name",
                    )
                if size.node.expr.is_Symbol:
                    found[str(size.node.expr)] = dim
        return found


def _is_fixed(size: Any) -> bool:
    """Return whether a size is one number; torch may hold such a number as a symbolic size."""
    return isinstance(size, int) or size.node.expr.is_number


def _torch_dtype(dtype: np.dtype) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    return torch.bool if dtype == np.bool_ else getattr(torch, dtype.name)


def _shapes(module: Any, args: Any, kwargs: Any, examples: _Examples) -> Any:
    """`dynamic_shapes` for torch.export: a Dim for each name."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch.utils._pytree import tree_map  # pyright: ignore[reportMissingImports]

    dims = {name: torch.export.Dim(name) for name in examples.sizes}

    def of(leaf: Any) -> Any:
        spec = examples.dims.get(id(leaf))
        if spec is None:
            return None
        return {i: dims[d] for i, d in enumerate(spec.dims) if isinstance(d, str)}

    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = inspect.signature(module.forward).parameters[name].kind
        shapes = tree_map(of, value)
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(shapes)
        else:
            named[name] = shapes
    return named


def _exported(
    module: Any, args: Any, kwargs: Any, dynamic_shapes: Any, strict: bool, name: str
) -> Any:
    """Export with fixed names for dimensions; where those do not fit, as torch relates them."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch._dynamo.exc import UserError  # pyright: ignore[reportMissingImports]
    from torch.utils._pytree import tree_map  # pyright: ignore[reportMissingImports]

    def export(shapes: Any) -> Any:
        with torch.no_grad():
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)

    try:
        return export(dynamic_shapes)
    except UserError as error:
        if not str(error).startswith("Constraints violated"):
            raise _failed(name, error) from error
        first = error
    except Exception as error:
        raise _failed(name, error) from error
    automatic = tree_map(lambda d: None if d is None else torch.export.Dim.AUTO, dynamic_shapes)
    try:
        return export(automatic)
    except Exception:  # noqa: BLE001  (the first message names the user's dimensions)
        raise _failed(name, first) from first


def _failed(name: str, error: Exception) -> PycError:
    message = " ".join(str(error).split())[:_REASON_CHARACTERS]
    return PycError(
        ReasonCode.UNTRACEABLE,
        f"{name}: expected a model that `torch.export.export` takes, got {type(error).__name__}: "
        f"{message}",
    )


def _decomposed(program: Any, name: str, names: Mapping[str, str]) -> TorchModel:
    try:
        program = decomposed(program)
    except Exception as error:
        raise _failed(name, error) from error
    inputs, outputs = _leaf_names(program)
    return TorchModel(program, name, {**_names_of_dims(program), **names}, inputs, outputs)


def _names_of_dims(program: Any) -> dict[str, str]:
    """Return torch's symbols -> names of the user's dimensions; a stored program has none."""
    values = (n.meta.get("val") for n in program.graph.find_nodes(op="placeholder"))
    dims = (size for value in values for size in getattr(value, "shape", ()))
    environments = {id(e := d.node.shape_env): e for d in dims if hasattr(d, "node")}
    found = {}
    for environment in environments.values():
        names = environment.source_name_to_debug_name
        for symbol, sources in environment.var_to_sources.items():
            for source in sources:
                name = getattr(source, "source_name", "") or names.get(source.name, "")
                if name.isidentifier():
                    found[str(symbol)] = name
    return found


def _leaf_names(program: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the leaves of inputs and results: their paths, joined by dots."""
    from torch.utils._pytree import (  # pyright: ignore[reportMissingImports]
        tree_flatten_with_path,
        tree_unflatten,
    )

    spec = program.call_spec
    args, kwargs = tree_unflatten([0] * spec.in_spec.num_leaves, spec.in_spec)
    named = program.graph_signature.user_inputs
    inputs = []
    for (path, _), given in zip(tree_flatten_with_path((args, kwargs))[0], named, strict=True):
        keys = [_key(k) for k in path[1:]]
        root = str(given) if not keys or keys[0].isdigit() else keys[0]
        inputs.append(".".join([root if len(keys) == 1 else root.rsplit("_", 1)[0], *keys[1:]]))
    if len(set(inputs)) < len(inputs):
        inputs = [str(name) for name in named]
    results = tree_unflatten([0] * spec.out_spec.num_leaves, spec.out_spec)
    outputs = [".".join(_key(k) for k in path) for path, _ in tree_flatten_with_path(results)[0]]
    return tuple(inputs), tuple("out" + n if not n or n[0].isdigit() else n for n in outputs)


def _key(key: Any) -> str:
    """Return one step of a path: a position, a key or an attribute."""
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def decomposed(program: Any) -> Any:
    """Decompose operators without handlers of an `ExportedProgram`, as far as torch can.

    Raises what torch's decompositions raise.
    """
    if all(_is_importable(module) for module in program.graph_module.modules()):
        return program
    # torch copies specs of trees by a class that it deprecates itself: nothing that users may mend.
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning, "copyreg")
    return program.run_decompositions(decompositions().copy())


def _is_importable(module: Any) -> bool:
    """Return whether each operator of a module's graph, if it has one, has a handler."""
    nodes = module.graph.nodes if hasattr(module, "graph") else ()
    called = (n.target for n in nodes if n.op == "call_function")
    return all(
        str(t) in HANDLERS or str(t).startswith("aten.sym_") or not hasattr(t, "_schema")
        for t in called
    )


@cache
def decompositions() -> Any:
    """Make a table for `ExportedProgram.run_decompositions`.

    torch's default table decomposes to core ATen; for operators without a handler that it keeps,
    the decompositions of its compiler follow. Composites with a handler (attention, linear, norms)
    are taken out of the table: written out, they are several times as many nodes.
    """
    import torch  # pyright: ignore[reportMissingImports]
    from torch._decomp import (  # pyright: ignore[reportMissingImports]
        global_decomposition_table,
    )

    table = torch.export.default_decompositions()
    for overload, function in global_decomposition_table["post_autograd"].items():
        if isinstance(overload, torch._ops.OpOverload) and overload not in table:
            table[overload] = function
    for overload in list(table):
        if str(overload) in HANDLERS:
            table.pop(overload)
    return table
