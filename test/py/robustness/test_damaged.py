"""Damaged artifacts: wherever a byte is flipped, a program is refused, or is the one it was.

Bytes of IREE's part, of PyC's entries and of the archive's own records.
"""

import random

import numpy as np
from scenarios import count_of

import pyc_mlir
from pyc_mlir.artifact import artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

FLIPS = count_of("bytes of a program flipped at random")
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def test_a_flipped_byte_is_refused_or_harmless():
    device, draw = Device("local-sync"), random.Random(0)
    program = pyc_mlir.compile(lambda x: np.tanh(x) * 2, [X], device=device)
    whole = artifact.to_bytes(program.artifact)
    right, refused = program(X), 0
    # The archive's records at the end are short, and no checksum holds them: half of the flips.
    records = len(whole) - 4000
    for flip in range(FLIPS):
        place = draw.randrange(records, len(whole)) if flip % 2 else draw.randrange(len(whole))
        data = bytearray(whole)
        data[place] ^= 1 << draw.randrange(8)
        try:
            loaded = Program(artifact.from_bytes(bytes(data)), device)
        except PycError as error:
            assert error.code is ReasonCode.BAD_ARTIFACT, f"byte {place}: {error}"
            refused += 1
            continue
        np.testing.assert_array_equal(loaded(X), right, f"byte {place}")
    assert refused >= FLIPS // 2
