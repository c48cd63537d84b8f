"""A compiled module on a device: checked, loaded, its functions as calls from arrays to arrays.

What is certain to fail is refused before any of the program's code runs: an instruction that the
CPU lacks would end the process. IREE's runtime itself refuses bytecode and executables whose form
it does not know; a release that it accepts, though the program was made for another, is told with
RUNTIME_DIFFERS.

The call is the hot path: it packs buffer views, invokes, and wraps the results. Everything that
can be known before is; shapes and types of the arguments are the caller's business (guards).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from iree import runtime as rt

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.manifest import Manifest, require_declared
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.pipelines.target.cpu_features import TILE_FEATURES, may_use_tiles
from pyc_mlir.runtime.array import Array, Spec, to_device
from pyc_mlir.runtime.counts import TakeCounts
from pyc_mlir.runtime.device import Device, host_cpu
from pyc_mlir.runtime.pool import ATTACH, POOL, WORDS
from pyc_mlir.util.pages import in_own_memory
from pyc_mlir.util.threads import waiting
from pyc_mlir.util.versions import RUNTIME, runtime_version

# What a cf.assert of the lowering says.
# A check of the program's own, or IREE's of a dynamic dimension for which it found the size.
_CHECK = re.compile(
    rf"{ReasonCode.DIMENSION_MISMATCH.name}: ([^;]*)|(\w+ shape dimension \d+ mismatch; [^;]*)"
)
# Looked up once: these are on the way of every call.
_List = rt.VmVariantList
_View = rt.HalBufferView
# How IREE's status says that no memory is left.
_EXHAUSTED = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True)
class ResultType:
    """The type of a result: the element type, and the shape where it is known."""

    dtype: np.dtype
    shape: tuple[int, ...] | None


class Executable:
    """A vmfb loaded on `device`. Several threads may call its entries."""

    def __init__(self, vmfb: bytes | memoryview, device: Device) -> None:
        """Load, and compute what the program computes once.

        Raises PycError: BAD_ARTIFACT for bytes that IREE cannot load here, OUT_OF_MEMORY.
        """
        self.device = device
        if device.is_cpu:
            may_use_tiles()
        instance = rt.VmInstance()
        try:
            # The module keeps it alive: constants stay where it has them.
            self.memory = in_own_memory(vmfb)
            self._module = rt.VmModule.wrap_buffer(instance, self.memory)
            hal = rt.create_hal_module(instance, device.hal)
            self.context = rt.VmContext(instance, modules=[hal, self._module])
        except (RuntimeError, ValueError, IndexError) as error:
            if _EXHAUSTED in str(error):
                raise PycError(
                    ReasonCode.OUT_OF_MEMORY,
                    f"vmfb: expected a device with memory for the program's constants, got "
                    f"{device!r}: {one_line(error)}; free memory, or take a smaller model",
                ) from None
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"vmfb: expected a program for {device!r}, got one that IREE refuses: {error}",
            ) from None

    def attach(self, seconds: float | None) -> None:
        """Let the device's threads help; `seconds`: that a call is predicted to take."""
        device, threads = self.device, self.device.threads or 1
        if device.kind != "local" or threads == 1 or ATTACH not in self._module.function_names:
            return
        told = self.entry(ATTACH, [ResultType(np.dtype(np.int64), (WORDS,))])
        code = tuple(vars(self).values())
        POOL.attach(self, code, lambda w: told([to_device(w, device)])[0].numpy(), threads, seconds)

    def require(
        self,
        name: str,
        signature: Signature,
        more: Sequence[ResultType] = (),
        inputs_only: bool = False,
    ) -> None:
        """Raise PycError (BAD_ARTIFACT) unless the function `name` is declared so.

        more: results beyond those of the signature. inputs_only: of results only number, ranks and
        element types have to agree.
        """
        hidden = (SignatureEntry("counts", r.dtype, r.shape or ()) for r in more)
        known = replace(signature, outputs=(*signature.outputs, *hidden))
        require_declared(name, self.function(name).reflection, known, inputs_only=inputs_only)

    def entry(
        self, name: str, results: Sequence[ResultType], counts: Sequence[TakeCounts] = ()
    ) -> "Entry":
        """Return the function `name`. Raises PycError (BAD_ARTIFACT) when there is none."""
        return Entry(self.context, self.function(name), self.device, results, counts)

    def function(self, name: str) -> rt.VmFunction:
        """Return IREE's handle of the function `name`. Raises PycError (BAD_ARTIFACT)."""
        function = self._module.lookup_function(name)
        if function is None:
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"vmfb: expected a function `{name}`, got {sorted(self._module.function_names)}; "
                "compile it again",
            )
        return function


class Entry:
    """One function of an executable."""

    __slots__ = (
        "_bare_invoke",
        "_counts",
        "_device",
        "_function",
        "_invoke",
        "_results",
        "_specs",
    )

    def __init__(
        self,
        context: rt.VmContext,
        function: rt.VmFunction,
        device: Device,
        results: Sequence[ResultType],
        counts: Sequence[TakeCounts] = (),
    ) -> None:
        """Take the results' types; `counts`: what the last ones go to instead of the caller."""
        self._counts = tuple(reversed(counts))
        self._bare_invoke = context.invoke
        has_workers = device.kind == "local-task"
        self._invoke = waiting(context.invoke) if has_workers else context.invoke
        self._function = function
        self._device = device
        self._results = tuple(results)
        self._specs: tuple[Spec | None, ...] = tuple(
            None if r.shape is None else (r.shape, r.dtype, device) for r in results
        )

    @property
    def device(self) -> Device:
        """The device of the function."""
        return self._device

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run on arrays of this device that passed the guards; the results are complete.

        Raises PycError (RUNTIME_FAILED) with the runtime's words.
        """
        inputs: Any = _List(len(arrays))
        for array in arrays:
            inputs.push_ref(array._buffer)
        return self._finish(inputs)

    def _finish(self, inputs: Any) -> list[Array]:
        if self._device.forked and not self._device.revive():
            raise PycError(
                ReasonCode.DEVICE_UNAVAILABLE,
                f"{self._device!r}: expected the process that made the device, got a forked child, "
                "where its threads do not run; load the program in the child, start children with "
                "`spawn`, or use `local`",
            )
        specs = self._specs
        outputs = _List(len(specs))
        try:
            self._invoke(self._function, inputs, outputs)
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._failure(error) from None
        if len(specs) == 1:
            view = outputs.get_as_object(0, _View)
            return [Array(view, specs[0] or self._spec_of(0, view))]
        results = []
        for index, spec in enumerate(specs):
            view = outputs.get_as_object(index, _View)
            results.append(Array(view, spec or self._spec_of(index, view)))
        for take in self._counts:
            take(results.pop())
        return results

    def _failure(self, error: Exception) -> PycError:
        """Make the error: the program's own run-time checks say why, the rest is the runtime's."""
        where = f"`{self._function.name}` on {self._device!r}"
        checked = _CHECK.search(str(error))
        if checked is not None:
            message = checked[1] or checked[2]
            return PycError(
                ReasonCode.DIMENSION_MISMATCH,
                f"{where}: expected dynamic dimensions that fit together, got: {message}; "
                "check the shapes of the arguments",
            )
        return PycError(
            ReasonCode.RUNTIME_FAILED, f"{where}: expected the call to finish, got: {error}"
        )

    def _spec_of(self, index: int, view: rt.HalBufferView) -> Spec:
        return tuple(view.shape), self._results[index].dtype, self._device

    def bare_call(self, arrays: Sequence[Array]) -> Callable[[], None]:
        """Prepare the least that a call can be: IREE's invoke with a prebuilt argument list."""
        inputs = _List(len(arrays))
        push: Any = inputs.push_ref
        for array in arrays:
            push(array.view)
        invoke, function, count = self._bare_invoke, self._function, len(self._specs)
        # The arrays keep IREE's device, and a tuple lets go of its last item first: the call may
        # outlive all else that knows the device, and the list of buffers must not.
        kept = (tuple(arrays), inputs)

        def call() -> None:
            invoke(function, kept[1], _List(count))

        return call


# Compilers are released with the runtime of the same number.
_MADE_FOR = (RUNTIME, "iree-base-compiler")
_LONGEST_VERSION = 40


def load_checked(artifact: Artifact, device: Device) -> Executable:
    """Load the program on a device.

    Raises PycError: DEVICE_UNAVAILABLE when it needs another device, or CPU features that this
    machine lacks, and BAD_ARTIFACT for what IREE refuses.
    """
    require_fit(artifact.manifest, device)
    try:
        executable = Executable(artifact.vmfb, device)
    except PycError as error:
        other = other_runtime(artifact.manifest.versions)
        if not other:
            raise
        message = f"{error.message}; it was {other}: compile it again, or install that one"
        raise PycError(error.code, message) from None
    executable.attach(artifact.manifest.seconds)
    return executable


def require_fit(manifest: Manifest, device: Device) -> None:
    """Raise PycError (DEVICE_UNAVAILABLE) unless a device can run the program of a manifest."""
    if manifest.device != device.runs:
        raise PycError(
            ReasonCode.DEVICE_UNAVAILABLE,
            f"program: expected a device of kind `{manifest.device}`, got {device!r}; compile "
            "for a target of that device, or pass another device",
        )
    if device.is_cpu:
        _check_cpu(manifest.features)


def other_runtime(versions: Mapping[str, Any]) -> str:
    """Return how the runtime differs from the one of a manifest's `versions`; '' if it does not."""
    made_for = str(next((versions[p] for p in _MADE_FOR if p in versions), "unknown"))
    here = runtime_version()
    if made_for == here:
        return ""
    return f"compiled for {RUNTIME} {made_for[:_LONGEST_VERSION]}, this is {here}"


def _check_cpu(features: Sequence[str]) -> None:
    # Linux names no x86 features on other machines; there IREE itself refuses the program.
    cpu = host_cpu()
    lacking = sorted(set(features) - cpu.features) if cpu is not None else []
    if lacking:
        refused = TILE_FEATURES.intersection(lacking) and not may_use_tiles()
        where = " or a system that does not let this process use tiles" if refused else ""
        raise PycError(
            ReasonCode.DEVICE_UNAVAILABLE,
            "program: expected a CPU with all features that it was compiled for, got one without "
            f"{', '.join(lacking)}{where}; compile for target `cpu` on this machine, or for one "
            "that needs less, as `cpu-avx2`",
        )
