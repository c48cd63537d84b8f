"""Verification records of comparisons, kept beside the programs that they are of.

A program of the cache that was compared with its samples here before need not be compared again.
Here means under the same runtime, on the same kind of device and CPU: the side file is named after
that, and the verification record in it says so once more, with the hash of program and samples
(verification.py). Whatever cannot be read is no verification record: the samples are computed then.

The outcome of a compile's check of itself stands there too. It holds for the entry, whose key names
the CPU and whether the check was on, so that a program from the cache is not checked again.
"""

import json
from dataclasses import dataclass, replace

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.cache_record import CacheRecord
from pyc_mlir.artifact.verification import Checks, SelfCheck, Unchecked, Verification
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import side_name
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.runtime.device import Device, environment_of

KIND, CHECK_KIND = "verification", "self-check"
# The entry's key says all that the outcome of a check depends on.
_CHECK_NAME = side_name(CHECK_KIND, {})


@dataclass(frozen=True)
class Verifications:
    """The verification records of one program, beside its entry; `key` is the entry's name."""

    cache: Cache
    key: str

    @staticmethod
    def of(cache: Cache, record: CacheRecord | None) -> "Verifications | None":
        """Return those of the program of a record; None for one that went past the cache."""
        return None if record is None or not record.key else Verifications(cache, record.key)

    def known(self, device: Device) -> Verification | None:
        """Return the verification of an earlier comparison on such a device."""
        data = self.cache.store.read_side(self.key, side_name(KIND, environment_of(device)))
        if data is None:
            return None
        try:
            return from_data(Verification, parse_json(data))
        # Sealed by whoever wrote it, which need not be this version of PyC.
        except ValueError:
            return None

    def keep(self, verification: Verification) -> None:
        """Keep what a comparison found; of one that failed nothing is kept."""
        if verification.passed:
            self._write(side_name(KIND, verification.environment), verification)

    def keep_check(self, check: SelfCheck) -> None:
        """Keep the outcome of a compile's check of itself."""
        self._write(_CHECK_NAME, check)

    def known_check(self) -> SelfCheck:
        """Return the outcome that was kept; else that there is no record."""
        data = self.cache.store.read_side(self.key, _CHECK_NAME)
        try:
            if data is not None:
                return from_data(SelfCheck, parse_json(data))
        except ValueError:
            pass
        return SelfCheck.without(Unchecked.NO_RECORD)

    def _write(self, name: str, content: Verification | SelfCheck) -> None:
        data, store = json.dumps(to_data(content), sort_keys=True).encode(), self.cache.store
        if store.read_side(self.key, name) != data:
            self.cache.note(store.write_side(self.key, name, data))


def noted(artifact: Artifact, verifications: Verifications | None) -> Artifact:
    """Keep the verification record of an artifact that was compiled here beside its entry."""
    checks = artifact.checks
    if verifications is not None and checks is not None:
        if checks.verification is not None:
            verifications.keep(checks.verification)
        if checks.check is not None:
            verifications.keep_check(checks.check)
    return artifact


def recalled(artifact: Artifact, verifications: Verifications | None) -> Artifact:
    """Return a program from the cache with the outcome of the check of its compile."""
    if verifications is None:
        return artifact
    checks = artifact.checks or Checks()
    return replace(artifact, checks=replace(checks, check=verifications.known_check()))
