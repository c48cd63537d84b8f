"""The complementary error function, whose small values are lost as 1 - erf."""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import accumulated, rational
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.ops.elementwise import (
    ERF_WORK,
    FLOAT,
    TRANSCENDENTAL_FLOPS,
    Elementwise,
)

# exp(x^2) erfc(x) from 1 to 8 as P / Q, and beyond as R / S, the constants first: the published
# coefficients of the Cephes library (Moshier, 1989). To f32's digits P / Q holds from 0 to 9.2,
# where the result is no normal number any more.
P_Q = (
    (5.57535335369399327526e2, 1.02755188689515710272e3, 9.34528527171957607540e2,
     5.26445194995477358631e2, 1.96520832956077098242e2, 4.86371970985681366614e1,
     7.46321056442269912687, 5.64189564831068821977e-1, 2.46196981473530512524e-10),
    (5.57535340817727675546e2, 1.65666309194161350182e3, 2.24633760818710981792e3,
     1.82390916687909736289e3, 9.75708501743205489753e2, 3.54937778887819891062e2,
     8.67072140885989742329e1, 1.32281951154744992508e1, 1.0),
)  # fmt: skip
_R_S = (
    (2.97886665372100240670, 7.40974269950448939160, 6.16021097993053585195,
     5.01905042251180477414, 1.27536670759978104416, 5.64189583547755073984e-1),
    (3.36907645100081516050, 9.60896809063285878198, 1.70814450747565897222e1,
     1.20489539808096656605e1, 9.39603524938001434673, 2.26052863220117276590, 1.0),
)  # fmt: skip
# Where the result is 0 in every type.
_END = 28.0


class Erfc(Elementwise, name="erfc", operands="x", traits=Trait.WIDE):
    """out = 1 - erf x, as exact where it is small."""

    allowed = FLOAT
    flops_per_element = 3 * TRANSCENDENTAL_FLOPS
    element_work = ERF_WORK

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        """erfc by the C library, element by element, in f64."""
        values = map(math.erfc, x.astype(np.float64).ravel().tolist())
        return np.fromiter(values, np.float64, x.size).reshape(x.shape)

    @staticmethod
    def decompose(b: Any, x: Any) -> Any:
        """Return exp(-x^2) times a rational of |x|, in f64 below 1 also 1 - erf x."""
        return accumulated(b, x, lambda x: _erfc(b, x))


def _erfc(b: Any, x: Any) -> Any:
    size = b.minimum(b.abs(x), b.scalar(_END, x))
    # x^2 is rounded; the square of the nearest 16th below is not.
    coarse = b.mul(b.floor(b.mul(size, b.scalar(16, x))), b.scalar(1 / 16, x))
    rest = b.mul(b.sub(coarse, size), b.add(coarse, size))
    power = b.mul(b.exp(b.neg(b.mul(coarse, coarse))), b.exp(rest))
    ratio, double = rational(b, size, P_Q), b.type_of(x).dtype.itemsize == 8
    if double:
        near = b.compare(size, b.scalar(8, x), predicate="lt")
        ratio = b.select(near, ratio, rational(b, size, _R_S))
    tail = b.mul(power, ratio)
    out = b.select(b.compare(x, b.scalar(0, x), predicate="lt"), b.sub(b.scalar(2, x), tail), tail)
    if not double:
        return out
    one = b.scalar(1, x)
    return b.select(b.compare(size, one, predicate="lt"), b.sub(one, b.erf(x)), out)
