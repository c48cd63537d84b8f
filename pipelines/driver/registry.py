"""The registry of passes: name -> pass class, imported on demand.

The built-in passes are a table of modules; others register through the entry point group
``pyc_mlir.passes`` (the entry point's name is the pass's name), or with `PASSES.register` from
the same process. Needs no MLIR until a pass is looked up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

from pyc_mlir.dialects.errors import PycError, ReasonCode

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pyc_mlir.pipelines.driver.base import Pass

ENTRY_POINT_GROUP = "pyc_mlir.passes"

BUILT_IN: dict[str, tuple[str, str]] = {
    "pyc-canonicalize": ("pyc_mlir.pipelines.pyc.canonicalize", "Canonicalize"),
    "pyc-infer-shapes": ("pyc_mlir.pipelines.pyc.infer_shapes", "InferShapes"),
    "pyc-decompose": ("pyc_mlir.pipelines.pyc.decompose", "Decompose"),
    "pyc-recognize": ("pyc_mlir.pipelines.pyc.recognize.recognize", "Recognize"),
    "pyc-fold-norms": ("pyc_mlir.pipelines.pyc.fold_norms", "FoldNorms"),
    "pyc-layout": ("pyc_mlir.pipelines.pyc.layout", "Layout"),
    "pyc-chunk": ("pyc_mlir.pipelines.pyc.chunk.chunk", "Chunk"),
    "pyc-fuse": ("pyc_mlir.pipelines.pyc.fuse", "Fuse"),
    "pyc-select-kernels": ("pyc_mlir.pipelines.pyc.select_kernels", "SelectKernels"),
    "pyc-remat": ("pyc_mlir.pipelines.memory.plan_memory", "Remat"),
    "pyc-plan-memory": ("pyc_mlir.pipelines.memory.plan_memory", "PlanMemory"),
    "convert-pyc-to-linalg": ("pyc_mlir.pipelines.linalg.convert_to_linalg", "ConvertToLinalg"),
    "pyc-bufferize-arena": ("pyc_mlir.pipelines.memory.bufferize_arena", "BufferizeArena"),
}


class PassRegistry(Mapping[str, "type[Pass]"]):
    """Pass classes by name. Iteration names every available pass without importing one."""

    def __init__(self) -> None:
        self._registered: dict[str, type[Pass]] = {}
        self._entry_points: dict[str, EntryPoint] | None = None

    def register(self, pass_class: "type[Pass]") -> "type[Pass]":
        """Add a pass class under its own name; usable as a decorator.

        Raises PycError when another class has the name, and for a class that is no pass.
        """
        _require_pass(pass_class, f"register({getattr(pass_class, '__qualname__', pass_class)})")
        known = self._registered.get(pass_class.name)
        if pass_class.name in BUILT_IN or known not in (None, pass_class):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"register({pass_class.__qualname__}): expected an unused name, "
                f"`{pass_class.name}` is taken",
            )
        self._registered[pass_class.name] = pass_class
        return pass_class

    def __getitem__(self, name: str) -> "type[Pass]":
        """Return the class of the pass `name`. Raises KeyError, or PycError for a broken plugin."""
        if name in self._registered:
            return self._registered[name]
        if name in BUILT_IN:
            module, attribute = BUILT_IN[name]
            if find_spec(module) is None:
                raise KeyError(name)
            return getattr(import_module(module), attribute)
        return _load(self._plugins()[name])

    def __contains__(self, name: object) -> bool:
        if name in self._registered:
            return True
        if name in BUILT_IN:
            return find_spec(BUILT_IN[str(name)][0]) is not None
        return name in self._plugins()

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in BUILT_IN if name in self)
        yield from sorted({*self._registered, *self._plugins()} - set(BUILT_IN))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _plugins(self) -> "dict[str, EntryPoint]":
        if self._entry_points is None:
            from importlib.metadata import entry_points  # 20 ms that most runs need not pay

            self._entry_points = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
        return self._entry_points


def _load(entry_point: "EntryPoint") -> "type[Pass]":
    """Import a third party's pass. Raises PycError, naming the plugin and what went wrong."""
    try:
        loaded = entry_point.load()
    except Exception as error:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"pass `{entry_point.name}` of plugin {entry_point.value}: it does not import "
            f"({type(error).__name__}: {error}); mend or uninstall the plugin",
        ) from error
    _require_pass(loaded, f"pass `{entry_point.name}` of plugin {entry_point.value}")
    return loaded


def _require_pass(given: Any, where: str) -> None:
    named = isinstance(getattr(given, "name", None), str) and callable(getattr(given, "run", None))
    if not (named and isinstance(given, type) and is_dataclass(given)):
        expected = "a dataclass with `name` and `run(module, context)` (docs/extending.md)"
        raise PycError(ReasonCode.BAD_ARGUMENT, where=where, expected=expected, got=repr(given))


PASSES = PassRegistry()


# The passes of the pinned wheel. MODULE_PIPELINES: those that abort the process when they are
# nested in anything but a module. UNPRINTED_OPTIONS: what their printed form leaves out.
_TABLE = (get_data("pyc_mlir.pipelines.driver", "native_passes.txt") or b"").decode().splitlines()
_WORDS = [line.removeprefix("* ").split() for line in _TABLE if not line.startswith("#")]
NATIVE_PASSES = frozenset(name for name, *_ in _WORDS)
MODULE_PIPELINES = frozenset(line.split()[1] for line in _TABLE if line.startswith("* "))
UNPRINTED_OPTIONS = {name: tuple(options) for name, *options in _WORDS if options}
