"""The explanation in words: names of nodes, layers, folded knobs, chosen sizes, the headline."""

from dataclasses import replace
from html import escape

import numpy as np
import pytest
from explain_programs import FUSE, explained
from planner_problems import branches
from refusals import refused
from test_explain import ACCOUNT, FOLDER, planned

from pyc_mlir import ReasonCode
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.compile_log import read_compile_log
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.compilation.options import make_options
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.choices.log import beside
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.tools.cli.sizes import ChosenSizes
from pyc_mlir.tools.demo.digits import MODELS
from pyc_mlir.tools.explain import text_page
from pyc_mlir.tools.explain.facts import ExplainedProgram
from pyc_mlir.tools.explain.html_page import page
from pyc_mlir.tools.explain.words import headline

F32 = np.dtype(np.float32)
BATCH = "hal.buffer_view.dim(arg0, index=0 : index)"
FORMULA = f"8960 * {BATCH} + util.align(({BATCH} * 400), 64)"
SIGNATURE = Signature(
    (SignatureEntry("x", F32, ("batch", 4)), SignatureEntry("y", F32, (None, 2))),
    (SignatureEntry("z", F32, ("batch",)),),
)


@pytest.mark.parametrize(
    ("location", "nodes"),
    [
        ("", ()),
        ("loc(unknown)", ()),
        ('loc("conv1"("a/model.onnx":1:1))', ("conv1",)),
        ('loc("/home/me/model.py":12:5)', ("model.py:12",)),
        ('fused["a"("m.onnx":1:1), "b"("m.onnx":2:1), "a"("m.onnx":1:1)]', ("a", "b")),
        ('fused["/x/m.py":4:20, "/x/m.py":5:31]', ("m.py:4", "m.py:5")),
        ('"conv1", "m.py:5"', ("conv1", "m.py:5")),
        ('"a\\"b"("m.onnx":1:1)', ('a\\"b',)),
        ('"bad\x1bname"("m.onnx":1:1)', ("bad\\u001bname",)),
    ],
)
def test_nodes_of_a_location(location, nodes):
    site = Site("p", "add.0123", location)
    assert site.nodes == nodes
    kept = site.without_paths
    assert "/home" not in kept.location and len(kept.nodes) == len(nodes)
    assert kept.without_paths == kept


KNOBS = "Gemm(rows=4, epilogue=Pointwise(reads=(Read(down=False),), steps=()), unroll=4, far=False)"
LONG = "IREE's own code generation, which has a long reason (so long) that it is cut by nobody"
OFFERED = (
    Alternative("gemm:a+b+c+d+e[tile=4]#1", Cost(1e-6), KNOBS),
    Alternative("gemm:a+b[rows=4]", reason="Gemm(rows=4)"),
    Alternative("iree", reason=LONG),
)
NODES = (
    "/encoder/layer.0/attention/MatMul", "/blocks/blocks.11/mlp/fc1/Gemm_3", "/layers1/conv/Conv",
    "/encoder/layer.0/mlp/MatMul", "/head/Gemm", "/MatMul_3", "conv1", "",
)  # fmt: skip


def test_decisions_by_layer_equal_ones_once_without_knobs():
    """In the order of layers, what is about the whole program last."""
    whole = replace(FUSE, site=Site("plan-memory", "g#0"))
    other = replace(whole, site=Site("plan-memory", "g#1"))
    # Each node's choice costs something else, but for three of the last layer.
    made = [
        Decision(
            Site("pyc-fuse", f"op.{n:016x}", f'"{name}"("m.onnx":1:1)' if name else ""),
            OFFERED[n % 3].name,
            (OFFERED[0], *OFFERED[1:2], replace(OFFERED[2], cost=Cost(n * 1e-6))),
            "heuristic",
        )
        for n, name in enumerate(NODES)
    ]
    thrice = [replace(made[6], site=Site("pyc-fuse", f"op.{n:016x}", f'"conv{n}"')) for n in (2, 3)]
    subject = ExplainedProgram.of("m.vmfb", explained(decisions=[whole, other, *made, *thrice]))
    text = text_page.overview(subject).partition("decisions by layer")[2]
    assert text == (FOLDER / "layers.txt").read_text()
    assert KNOBS in text_page.decisions(subject)
    shown = page(subject)
    assert "with its knobs</summary>" in shown and "Gemm with 4 knobs" in shown
    assert "<summary><span><i>plan of the working memory</i>" in shown, "it is about no node"


def test_chosen_sizes():
    sizes = ChosenSizes.parse(["batch=8", "y[0]=3"], SIGNATURE)
    assert str(sizes) == "batch=8, y[0]=3" and sizes.names == ["batch", "y[0]"]
    assert sizes.bytes_of(FORMULA) == 8960 * 8 + 3200
    assert sizes.of(SIGNATURE.inputs) == 8 * 4 * 4 + 3 * 2 * 4
    assert ChosenSizes.parse(["batch=1"], SIGNATURE).bytes_of(FORMULA) == 8960 + 448
    none = ChosenSizes(SIGNATURE)
    assert none.readable(FORMULA) == "8960 * batch + align((batch * 400), 64)"
    assert none.bytes_of(FORMULA) is None and none.of(SIGNATURE.inputs) is None
    for odd in ("__import__('os')", "2 ** 9999999", "f(1)", "1 +", "-1"):
        assert sizes.bytes_of(odd) is None
    assert none.readable("hal.buffer_view.dim(arg7, index=0 : index)") == "arg7[0]"


def test_operations_of_sizes_are_words():
    batch = "hal.buffer_view.dim(arg0, index=0 : index)"
    less = f"arith.addi({batch}, -2, overflowFlags=#arith.overflow<none>)"
    formula = f"16 * arith.maxsi(arith.ceildivsi(arith.minsi({less}, {batch}), 2), 0) + 8"
    none = ChosenSizes(SIGNATURE)
    words = "16 * max(ceil(min((batch - 2), batch) / 2), 0) + 8"
    assert none.readable(f"a, {formula} bytes") == f"a, {words} bytes"
    for size, wanted in ((7, 16 * 3 + 8), (1, 8), (0, 8)):
        assert ChosenSizes.parse([f"batch={size}"], SIGNATURE).bytes_of(formula) == wanted
    for cut in range(len(formula)):
        none.readable(formula[:cut])
    assert none.readable("arith.addi(1, (2") == "arith.addi(1, (2"
    assert none.readable("arith.addi(1) + arith.muli(2, 3)") == "arith.addi(1) + (2 * 3)"


@pytest.mark.parametrize("text", ["batc=8", "batch", "batch=x", "batch=-1", "=8"])
def test_sizes_of_what_there_is_not(text):
    error = refused(
        ReasonCode.BAD_ARGUMENT,
        ChosenSizes.parse,
        [text],
        SIGNATURE,
        match="expected NAME=SIZE with a dynamic dimension",
    )
    assert ("did you mean 'batch'?" in error.message) == (text == "batc=8")


def test_a_size_outside_of_the_declared_range_is_told(caplog):
    ranged = SIGNATURE.with_ranges({"batch": (1, 8)})
    ChosenSizes.parse(["batch=8"], ranged)
    assert not caplog.records
    assert ChosenSizes.parse(["batch=9"], ranged).chosen == {"batch": 9}
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "1 to 8" in record.getMessage()
    assert record.getMessage().endswith("[DIMENSION_OUT_OF_RANGE]")


def test_headlines():
    region = planned(branches(3))
    reported = ExplainedProgram.of("m.vmfb", explained([region]))
    assert headline(reported) == "a call needs 12.00 MiB of memory, 25 % less than by IREE's plan"
    iree = ExplainedProgram.of("m.vmfb", explained([replace(region, chosen="iree")]))
    assert headline(iree) == "a call needs 16.00 MiB of memory, as much as by IREE's plan"
    open_ = explained(account={**ACCOUNT, "outputs": None})
    assert (
        headline(ExplainedProgram.of("m.vmfb", open_))
        == "the memory of a call is known when it runs"
    )


@pytest.fixture(scope="module")
def dynamic() -> artifacts.Artifact:
    """The demo's network with a dynamic batch and the names of its nodes, saved and read."""
    made = build(MODELS["cnn"], None, make_options(node_names=True))
    return artifacts.from_bytes(artifacts.to_bytes(made))


def test_a_dynamic_program_at_a_chosen_size(dynamic):
    bare = ExplainedProgram.of("m.vmfb", dynamic)
    assert headline(bare) == (
        "the memory of a call depends on batch; --size batch=8 shows it for one size"
    )
    signature = replace(dynamic.signature, ranges={"batch": (32, 64)})
    ranged = replace(bare, sizes=ChosenSizes(signature))
    assert "--size batch=32 shows" in headline(ranged)
    assert "hal.buffer_view" not in text_page.overview(bare)
    chosen = ExplainedProgram.of("m.vmfb", dynamic, sizes=["batch=8"])
    assert " KiB of memory for batch=8, " in headline(chosen)
    assert escape(headline(chosen).removeprefix("a ")) in page(chosen)
    account = dict(chosen.account())
    assert account["inputs"] == 8 * 64 * 4 and account["transients (the arena)"]
    twice = dict(ExplainedProgram.of("m.vmfb", dynamic, sizes=["batch=16"]).account())
    assert twice["inputs"] == 2 * account["inputs"]


def test_an_artifact_keeps_names_where_it_was_asked_to(dynamic):
    nodes = {name for d in dynamic.decisions for name in d.site.nodes}
    assert {"conv1", "relu_conv1", "dense"} <= nodes
    assert not any("onnx" in d.site.location for d in dynamic.decisions), "no paths"
    assert dynamic.manifest.options.node_names
    shown = ExplainedProgram.of("m.vmfb", dynamic)
    text = text_page.overview(shown)
    assert "\n  conv1\n    conv1  pyc-" in text and "2 x conv1, conv2  pyc-fuse:conv2d." in text
    assert "--node-names" not in text
    assert "<h3>conv1</h3>" in page(shown)


def test_names_lie_beside_programs_and_entries_of_the_cache(tmp_path):
    cache = Cache(CacheStore(tmp_path / "cache"))
    options = make_options(kernels="iree", planner_mode="iree", check=False)
    made, again = (build(MODELS["mlp"], None, options, cache=cache) for _ in range(2))
    assert again.cached is not None and again.cached.outcome == "memory"
    assert '"dense1"' in made.names.sites.values() and again.names == made.names
    assert artifacts.to_bytes(again) == artifacts.to_bytes(made), "names are no part of a program"
    other = Cache(CacheStore(tmp_path / "cache"))
    assert build(MODELS["mlp"], None, options, cache=other).names == made.names
    program = tmp_path / "m.vmfb"
    artifacts.write(again, program)
    known = read_compile_log(program).artifact
    assert known is not None and artifacts.read(program).names == known.names == made.names
    beside(program).write_bytes(replace(made.names, graph_id="another").to_bytes())
    assert not artifacts.read(program).names.sites
    beside(program).write_bytes(b"no names")
    assert not artifacts.read(program).names.sites


@pytest.mark.full
def test_names_in_the_artifact_are_asked_for_and_not_cached(tmp_path):
    cache = Cache(CacheStore(tmp_path))
    plain = build(MODELS["mlp"], None, make_options(kernels="iree", planner_mode="iree"))
    read = artifacts.from_bytes(artifacts.to_bytes(plain))
    assert not any(d.site.location for d in read.decisions)
    assert not read.manifest.options.node_names
    options = make_options(kernels="iree", planner_mode="iree", node_names=True)
    named = build(MODELS["mlp"], None, options, cache=cache)
    assert named.cached is not None and named.cached.outcome == "bypass"
    assert "node_names" in named.cached.events[0].why
