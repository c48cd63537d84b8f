"""Code that IREE generated is remembered: equal modules at the end of phase `stream` share it.

More than half of a compile is what comes after that phase: code generation by LLVM. It is a
function of the flags and the module. Many tests compile one program under several plans, budgets or
contracts, or once more in the next test, and end with a module that they have had. Everything
before, PyC's passes and plans and IREE's phases up to `stream`, runs each time. A full run
remembers nothing.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyc_mlir.iree import compiler
from pyc_mlir.iree.compiler import IreeSession
from pyc_mlir.iree.diagnostics import IreeDiagnostic
from pyc_mlir.iree.flags import reaches_out
from pyc_mlir.iree.fork_join import fork_and_join
from pyc_mlir.iree.rewrites import AFTER, forbid_contraction
from pyc_mlir.util.env_overrides import env_overrides

# What a test process keeps; beyond, code is generated again.
MOST_BYTES = 256 << 20
_CONSTANT = re.compile(rb"dense_resource<([^>]*)>")
_NAMED_BY_CONTENT = re.compile(rb"pyc_[0-9a-f]{16}")


@dataclass(frozen=True)
class Generated:
    """A program, and what IREE said while it generated the code."""

    vmfb: bytes
    said: tuple[IreeDiagnostic, ...]


class RememberingSession(IreeSession):
    """A session that generates code once for equal modules and flags."""

    kept: ClassVar[dict[bytes, Generated]] = {}
    kept_bytes: ClassVar[int] = 0
    taken: ClassVar[int] = 0

    def __init__(self, flags: Sequence[str] = (), verify: bool = True) -> None:
        super().__init__(flags, verify)
        self._flags = tuple(flags)
        self._key: bytes | None = None
        self._generated: Generated | None = None
        self._said_before = 0

    def run(self, to: str = "end", start: str = "start") -> None:
        """`IreeSession.run`; with the program known, nothing runs from the end of `stream` on."""
        if start == "stream" and to in (AFTER, "end") and self._remembers():
            self._key = self._asked()
            self._said_before = len(self.diagnostics)
            self._generated = self.kept.get(self._key)
        if self._generated is not None:
            if (start, to) in (("stream", AFTER), ("stream", "end"), (AFTER, "end")):
                return
            self._catch_up()
        super().run(to, start)
        if to == "end" and self._key is not None:
            self._keep(Generated(super().vmfb(), tuple(self.diagnostics[self._said_before :])))

    def vmfb(self) -> bytes:
        """The compiled program."""
        if self._generated is None:
            return super().vmfb()
        self.diagnostics += self._generated.said
        type(self).taken += 1
        return self._generated.vmfb

    def text(self) -> bytes:
        """The module as MLIR text (UTF-8), in the phase that it was asked to reach."""
        self._catch_up()
        return super().text()

    def _remembers(self) -> bool:
        """Whether what follows depends on flags and module alone, and is all that is wanted."""
        flags = (f for f in self._flags if f not in compiler.DEFAULT_FLAGS)
        # A test may replace the one step of PyC's that comes later.
        own = compiler.forbid_contraction is forbid_contraction
        return own and self._dump_folder is None and not any(map(reaches_out, flags))

    def _asked(self) -> bytes:
        """The key: flags, environment and module."""
        settings = repr((self._flags, sorted(env_overrides().items()))).encode()
        return hashlib.sha256(settings + b"\0" + content(self.module)).digest()

    def _keep(self, generated: Generated) -> None:
        assert self._key is not None
        if self.kept_bytes + len(generated.vmfb) <= MOST_BYTES:
            self.kept[self._key] = generated
            type(self).kept_bytes += len(generated.vmfb)

    def _catch_up(self) -> None:
        """Generate code after all, for whoever looks at the module."""
        if self._generated is not None:
            self._generated = self._key = None
            super().run(AFTER, "stream")
            forbid_contraction(self.module)
            fork_and_join(self.module)


def content(module: Any) -> bytes:
    """The text of a module with its locations; bytes of constants only where no name says them."""
    text = module.get_asm(
        binary=True, large_resource_limit=0, enable_debug_info=True, assume_verified=True
    )
    if all(map(_NAMED_BY_CONTENT.fullmatch, _CONSTANT.findall(text))):
        return text
    return text + module.get_asm(binary=True, assume_verified=True)


def remember(on: bool = True) -> None:
    """Have all compiles of this process remember code from now on, or stop that."""
    compiler.IreeSession = RememberingSession if on else IreeSession  # pyright: ignore
