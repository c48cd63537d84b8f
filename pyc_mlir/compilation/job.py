"""A compile as one frozen record: what the cache's key, the workers and the compile itself take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.frontends.sources import Inputs, Loaded, Source
from pyc_mlir.util.logs import Stage


@dataclass(frozen=True)
class Job:
    """A source, its inputs and the options to compile it with.

    settled: sizes of dynamic dimensions, for a plan of certain shapes.
    """

    source: Source
    inputs: Inputs
    options: Options
    settled: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(source: Any, inputs: Inputs, options: Options) -> "Job":
        """Return the job of what a user gives. Raises PycError as `Source.of`."""
        return Job(Source.of(source, options.islands, options.function), inputs, options)

    @property
    def shapes(self) -> Sequence[Any] | None:
        """The inputs that refine dynamic dimensions; None where the source takes the inputs."""
        if self.source.takes_inputs or self.inputs is None:
            return None
        return list(self.inputs)

    def under(self, options: Options) -> "Job":
        """Return the job under other options."""
        return replace(self, options=options)

    def load(self, context: ir.Context) -> Loaded:
        """Read the source into `context`. Raises as `Source.load`."""
        return self.source.load(self.inputs, context)

    def loaded(self, source: Loaded) -> "Job":
        """Return the job of the source as it was loaded."""
        return Job(source, self.shapes, self.options)


@runtime_checkable
class PreparesCompile(Protocol):
    """A policy that looks at the whole program before it is compiled."""

    def prepare(self, job: Job, stage: Stage) -> Options:
        """Return the options to compile with; `stage` is a context manager around each step."""
        ...
