"""torch's own operator samples through the importer: equal to torch, or refused with a reason."""

import random

import pytest
from conftest import ALL_CASES

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="expecttest, which torch's samples need, is not installed")

from torch.testing._internal.common_methods_invocations import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    op_db,
)
from torch_cases import (  # noqa: E402
    EQUAL,
    REFUSED,
    UNDEFINED,
    UNEXPORTED,
    outcome,
    samples,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool)
CASES = [
    (f"{info.name}-{info.variant_test_name}-{str(dtype)[6:]}", info, dtype)
    for info in op_db
    for dtype in DTYPES
    if dtype in info.supported_dtypes("cpu") and not info.name.startswith(UNDEFINED)
]
SAMPLED = CASES if ALL_CASES else random.Random(17).sample(CASES, 10)
# What models are made of: every sample is equal.
WHOLE = (
    "add", "mul", "div", "where", "clamp", "cat", "gather", "index_select", "cumsum", "sort",
    "topk", "softmax", "log_softmax", "var", "amax", "tril", "flip", "roll", "unfold", "matmul",
    "addmm", "baddbmm", "nn.functional.gelu", "nn.functional.linear", "nn.functional.conv2d",
    "nn.functional.conv_transpose2d", "nn.functional.layer_norm", "nn.functional.group_norm",
    "nn.functional.max_pool2d", "nn.functional.avg_pool2d", "nn.functional.adaptive_avg_pool2d",
    "nn.functional.scaled_dot_product_attention", "nn.functional.hardswish", "nn.functional.elu",
)  # fmt: skip


@pytest.mark.parametrize(("name", "info", "dtype"), SAMPLED, ids=[c[0] for c in SAMPLED])
def test_no_sample_is_wrong(name, info, dtype):
    for sample in samples(info, dtype, None if ALL_CASES else 2):
        found = outcome(info, sample)
        assert found.kind in (EQUAL, REFUSED, UNEXPORTED), found


def _whole():
    found = [i for i in op_db if i.name in WHOLE and torch.float32 in i.supported_dtypes("cpu")]
    return found if ALL_CASES else random.Random(19).sample(found, 6)


@pytest.mark.parametrize("info", _whole(), ids=lambda i: f"{i.name}-{i.variant_test_name}")
def test_operators_of_models_are_whole(info):
    for sample in samples(info, torch.float32, None if ALL_CASES else 2):
        assert outcome(info, sample).kind == EQUAL
