"""Single nodes against onnxruntime: its own operators, and ONNX's newer ones, over edge shapes."""

from collections import Counter

import pytest
from conftest import sample

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import genai_model
import numpy as np
import onnx
import ort_cases
import ort_microsoft
import ort_newer
from f16_ranges import SCALES, difference

from pyc_mlir import PycError, interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx

SAMPLE = 150


def _outcomes(cases, dynamic: bool) -> dict[str, str]:
    """What becomes of each case that onnxruntime takes."""
    context, found = new_context(), {}
    for case in sample(cases, SAMPLE, seed=17):
        wanted = ort_cases.by_onnxruntime(case)
        if wanted is not None:
            found[case.name] = ort_cases.outcome(case, wanted, context, dynamic)
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_of_onnxruntime_compute_what_it_does(dynamic: bool, record_property) -> None:
    found = _outcomes(list(ort_microsoft.cases()), dynamic)
    sizes = "dynamic" if dynamic else "static"
    counts = Counter(reported.partition(":")[0] for reported in found.values())
    record_property(f"com.microsoft against onnxruntime, {sizes} sizes", dict(counts))
    assert {name: reported for name, reported in found.items() if reported != "equal"} == {}


def test_attention_with_ends_and_starts_of_keys() -> None:
    """A mask of 2 * batch entries; refused where it is not known that they are as many."""
    rng = np.random.default_rng(0)
    shapes = ((2, 5, 8), (8, 24), (24,))
    given = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    mask = np.array([3, 5, 1, 0], np.int32)
    case = ort_cases.Case("Attention", (*given, mask), {"num_heads": 2}, domain=ort_cases.MICROSOFT)
    wanted = ort_cases.by_onnxruntime(case)
    assert wanted is not None
    assert ort_cases.outcome(case, wanted, new_context(), False) == "equal"
    assert ort_cases.outcome(case, wanted, new_context(), True).startswith("refused")


def test_operators_of_onnx_compute_what_onnxruntime_does(record_property) -> None:
    found = _outcomes(list(ort_newer.cases()), dynamic=False)
    counts = Counter(reported.partition(":")[0] for reported in found.values())
    record_property("onnx operators against onnxruntime, static sizes", dict(counts))
    assert {name: reported for name, reported in found.items() if reported != "equal"} == {}


def test_operators_of_onnx_of_dynamic_sizes_are_right_or_refused(record_property) -> None:
    found = _outcomes(list(ort_newer.cases()), dynamic=True)
    counts = Counter(reported.partition(":")[0] for reported in found.values())
    record_property("onnx operators against onnxruntime, dynamic sizes", dict(counts))
    assert [name for name, reported in found.items() if reported.startswith("wrong")] == []


def test_defaults_of_onnxruntime_may_be_stated() -> None:
    """Exporters write all attributes; the defaults are those of onnxruntime's own definitions."""
    from onnxruntime.capi import (  # pyright: ignore[reportMissingImports]
        onnxruntime_pybind11_state as state,  # pyright: ignore[reportAttributeAccessIssue]
    )

    context, refused, tried = new_context(), set(), set()
    defined = {s.name: s for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}
    for case in {c.op: c for c in reversed(list(ort_microsoft.cases()))}.values():
        model = ort_cases.model(case, wanted=[np.zeros((), np.float32)] * case.outputs)
        import_onnx(model, context=context)
        (node,) = model.graph.node
        given = {a.name for a in node.attribute}
        for name, attribute in defined[case.op].attributes.items() if case.op in defined else ():
            default = onnx.AttributeProto.FromString(attribute._default_value)
            if not default.type or name in given:
                continue
            default.name = name
            node.attribute.append(default)
            tried.add((case.op, name))
            try:
                import_onnx(model, context=context)
            except PycError as error:
                refused.add(str(error))
            del node.attribute[-1]
    assert refused == set() and len(tried) > 20


# Those that keep products of 16-bit floats between two of them.
_STORED = frozenset({"Attention", "FusedGemm"})


def test_operators_of_onnxruntime_over_the_range_of_f16(record_property) -> None:
    """A result of f32 within the range of f16 is f16's too; the first two inputs are scaled."""
    context, counts, wrong = new_context(), Counter(), {}
    cases = [c for c in ort_microsoft.cases() if c.op not in _STORED]
    for case in sample(cases, SAMPLE, seed=17):
        given = [x for i, x in enumerate(case.inputs) if x is not None and i not in case.known]
        model = ort_cases.model(case, wanted=[np.zeros((), np.float32)] * case.outputs)
        try:
            for scale in SCALES:
                differs = difference(model, given, scale, context, 2)
                counts["wrong" if differs else "equal"] += 1
                wrong |= {f"{case.name}, times {scale}": differs} if differs else {}
        except PycError:
            counts["refused"] += 1
    record_property("com.microsoft over the range of f16", dict(counts))
    assert wrong == {}
    assert counts["equal"] > 100


def _steps(onnx_model) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Inputs and onnxruntime's answers: a first call of 5 tokens, then two of one token."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(
        onnx_model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    rng = np.random.default_rng(17)
    cache = [np.zeros((2, genai_model.FEW, 0, genai_model.DEPTH), np.float32)] * (len(names) - 2)
    found, held = [], 0
    for length in (5, 1, 1):
        held += length
        ids = rng.integers(0, genai_model.WORDS, (2, length))
        given = [ids, np.ones((2, held), np.int64), *cache]
        answers = session.run(None, dict(zip(names, given, strict=True)))
        found.append((given, answers))
        cache = answers[1:]
    return found


def test_a_decoder_of_4_bits_with_a_cache_answers_as_onnxruntime() -> None:
    """The first call and the next ones are one program: all sizes are dynamic."""
    model = genai_model.decoder()
    module = import_onnx(model, context=new_context())
    for given, wanted in _steps(model):
        for mine, theirs in zip(interpret(module, given), wanted, strict=True):
            # onnxruntime multiplies activations of 8 bits with weights of 4.
            assert mine.shape == theirs.shape
            assert np.abs(mine - theirs).max() <= 2e-2 * np.abs(theirs).max()
