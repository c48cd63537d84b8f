"""Print the IR around passes: before or after named ones, all, changed or failed ones.

Native passes are printed by MLIR's own instrumentation, PyC passes here in the same format
(``// -----// IR Dump After Fuse: pyc-fuse //----- //``). With `tree_dir`, dumps become numbered
files of the whole module instead. Follows MLIR's IRPrinting.cpp.
"""

import hashlib
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.util.files import make_folder, write_file
from pyc_mlir.pipelines.driver.base import Pass
from pyc_mlir.pipelines.driver.pipeline_text import AnchorNode, Node


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@dataclass
class IrPrinter:
    """The settings of printing; the default prints nothing.

    `before` and `after` hold pass names. `after_change` and `after_failure` restrict printing
    after passes, and imply it when nothing else asks for it.
    """

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    before_all: bool = False
    after_all: bool = False
    after_change: bool = False
    after_failure: bool = False
    module_scope: bool = False
    debug_info: bool = False
    large_elements_limit: int | None = None
    tree_dir: Path | None = None
    write: Callable[[str], None] = _to_stderr
    _files: int = field(default=0, init=False)

    @property
    def needs_single_steps(self) -> bool:
        """True when native passes must run one by one for the right ones to be printed."""
        return bool(self.before or self.after or self.tree_dir)

    def _wants_before(self, name: str) -> bool:
        return self.before_all or name in self.before

    def _wants_after(self, name: str) -> bool:
        restricted = self.after_change or self.after_failure or self.tree_dir is not None
        implied = restricted and not (self.after or self.before or self.before_all)
        return self.after_all or implied or name in self.after

    @contextmanager
    def native(
        self, manager: passmanager.PassManager, nodes: tuple[Node, ...], op: ir.Operation
    ) -> Iterator[None]:
        """Print around the native passes `nodes`, which `manager` is about to run on `op`."""
        name = ""
        if self.needs_single_steps:
            node = nodes[0]
            while isinstance(node, AnchorNode):
                (node,) = node.children
            name = node.name
        if self.tree_dir is not None:
            with self._dumps(name, name, name, op):
                yield
            return
        before, after = self._wants_before(name), self._wants_after(name)
        if before or after:
            manager.enable_ir_printing(
                print_before_all=before,
                print_after_all=after,
                print_module_scope=self.module_scope,
                print_after_change=self.after_change,
                print_after_failure=self.after_failure,
                large_elements_limit=self.large_elements_limit,
                enable_debug_info=self.debug_info,
            )
        yield

    @contextmanager
    def around(self, pass_: Pass, text: str, op: ir.Operation) -> Iterator[None]:
        """Print around a PyC pass that runs in the body of the `with`."""
        with self._dumps(pass_.name, type(pass_).__name__, text, op):
            yield

    @contextmanager
    def _dumps(self, name: str, title: str, text: str, op: ir.Operation) -> Iterator[None]:
        if self._wants_before(name):
            self._dump(f"Before {title}: {text}", f"{name}_before", op)
        wants_after = self._wants_after(name)
        only_changed = wants_after and self.after_change
        fingerprint = _fingerprint(op) if only_changed else ""
        try:
            yield
        except BaseException:
            if wants_after:
                self._dump(f"After {title} Failed: {text}", f"{name}_failed", op)
            raise
        changed = not only_changed or _fingerprint(op) != fingerprint
        if wants_after and changed and not self.after_failure:
            self._dump(f"After {title}: {text}", name, op)

    def _dump(self, heading: str, file_name: str, op: ir.Operation) -> None:
        out, limit = io.StringIO(), self.large_elements_limit
        op.print(file=out, large_elements_limit=limit, enable_debug_info=self.debug_info)
        text = out.getvalue()
        if self.tree_dir is None:
            self.write(f"// -----// IR Dump {heading} //----- //\n{text}\n\n")
            return
        # As MLIR names an op's folder: ``builtin_module_no-symbol-name``.
        symbol = op.attributes["sym_name"] if "sym_name" in op.attributes else None  # noqa: SIM401
        name = ir.StringAttr(symbol).value if symbol is not None else "no-symbol-name"
        folder = make_folder(self.tree_dir / f"{op.name.replace('.', '_')}_{name}")
        write_file(folder / f"{self._files}_{file_name}.mlir", text.encode())
        self._files += 1


def _fingerprint(op: ir.Operation) -> str:
    """Digest all that printing shows."""
    text = op.get_asm(print_generic_op_form=True, enable_debug_info=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
