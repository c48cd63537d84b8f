"""What a compile depends on: whatever changes the program changes the key, and no more does."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx_models import info, model
from option_values import CHANGES, RECIPE, REFUSED

from pyc_mlir import Tensor
from pyc_mlir.artifact.verification import CacheEvent
from pyc_mlir.cache import key as identities
from pyc_mlir.cache.key import Identity, Sources, current_identity, make_key, module_digests
from pyc_mlir.cache.store import CacheStore, Unkeyed, differences, nearest, parse_key, sha256
from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.frontends.sources import Source
from pyc_mlir.pipelines.choices.choices import FirstIsBest, Recipe, as_policy
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.util.env_overrides import OVERRIDES
from pyc_mlir.util.process_start import process_start

PROGRAM = {"enters": "pyc", "graph": "g", "constants": "c", "shapes": None}
WHO = Identity({"numpy": "1"}, "s", {"cpu": "x"})


def key(options: Options | None = None, **other: Any):
    return make_key({**PROGRAM, **other}, options or Options(), WHO)


@dataclass(frozen=True)
class Dated:
    """A policy of another package with a version."""

    version: str = "1"
    bias: float = 0.5
    name: str = "dated"

    def prefer(self, site, alternatives):
        return alternatives[0].name


class Undated:
    """A policy that cannot be told from its next edition."""

    name = "undated"

    def prefer(self, site, alternatives):
        return alternatives[0].name


def test_every_field_of_the_options_is_in_the_key():
    names = {f.name for f in fields(Options)}
    assert names == CHANGES.keys() | REFUSED.keys() | {"verify_ir"}, "a new field needs a row"
    assert key(replace(Options(), verify_ir=True)).digest == key().digest, "of no consequence"
    assert key().digest == key(Options()).digest
    found = {name: key(replace(Options(), **{name: v})).digest for name, v in CHANGES.items()}
    assert len({key().digest, *found.values()}) == len(CHANGES) + 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_content_names_is_refused(name):
    with pytest.raises(Unkeyed):
        key(replace(Options(), **{name: REFUSED[name]}))


def test_a_key_names_its_parts_in_clear():
    made_key = key(Options(recipe=Recipe({"s": "c"}, {"s": ("policy", (Note("seen"),))})))
    parts = parse_key(made_key.text)
    assert parts["options"]["target"]["name"] == "cpu"
    recipe = {
        "choices": {"s": "c"},
        "origins": {"s": ["policy", [{"kind": "note", "text": "seen"}]]},
    }
    assert parts["options"]["recipe"] == {
        **recipe,
        "graph_id": "",
        "tolerant": False,
        "made_for": "",
        "works": {},
    }
    assert parts["evidence"] == {} and parts["program"]["graph"] == "g"
    assert made_key.digest == sha256(made_key.text)
    assert parse_key(b"x") == {} and parse_key(b"[]") == {} and parse_key(b'{"schema": 0}') == {}


@pytest.mark.parametrize("clause", [f.name for f in fields(Contract)])
def test_every_clause_is_in_the_key(clause):
    value = {
        "allowed_targets": ("cpu",), "fallbacks": ("none",), "determinism": "strict",
        "max_concurrency": 2, "memory_budget_bytes": 5, "latency_binding": True,
        "detect_faults": True,
    }.get(clause, 0.5)  # fmt: skip
    goal = 1.0 if clause == "latency_binding" else None
    before = replace(Options(), contract=Contract(latency_goal_seconds=goal))
    changed = replace(before, contract=replace(before.contract, **{clause: value}))
    assert differences(key(before).parts, key(changed).parts) == [f"options.contract.{clause}"]


def test_every_field_of_a_recipe_is_in_the_key():
    plain = Recipe({"s": "c"})
    changes = {f.name: getattr(RECIPE, f.name) for f in fields(Recipe)}
    keys = [key(Options(recipe=replace(plain, **{n: v}))) for n, v in changes.items()]
    assert len({key(Options(recipe=plain)).digest, *(k.digest for k in keys)}) == len(changes) + 1


def test_parts_of_program_and_host():
    assert differences(key().parts, key(graph="h").parts) == ["program.graph"]
    other = make_key(PROGRAM, Options(), replace(WHO, source="t", host={"cpu": "y"}))
    assert differences(key().parts, other.parts) == ["built_by.pyc_source", "host.cpu"]


@pytest.mark.parametrize(
    "flag",
    [
        "--iree-hal-dump-executable-files-to=x",
        "--mlir-print-ir-after-all",
        "--x=/a",
        "--x-path=y",
        "--iree-codegen-transform-dialect-library=x.mlir",
        "--iree-hal-substitute-executable-source=a=b.mlir",
    ],
)
def test_flags_that_reach_out_are_refused(flag):
    with pytest.raises(Unkeyed, match=flag.partition("=")[0]):
        key(Options(iree_flags=(flag,)))
    named = replace(Target.named("cpu"), flags=(flag,))
    with pytest.raises(Unkeyed, match=flag.partition("=")[0]):
        key(Options(target=named))


def test_policies():
    dated = key(Options(policy=as_policy(Dated())))
    assert dated.digest == key(Options(policy=as_policy(Dated()))).digest
    assert dated.parts["options"]["policy"]["class"].endswith(".Dated")
    for other in (Dated("2"), Dated(bias=0.25)):
        assert key(Options(policy=as_policy(other))).digest != dated.digest
    with pytest.raises(Unkeyed, match="`undated` has no `version`"):
        key(Options(policy=as_policy(Undated())))
    with pytest.raises(Unkeyed, match="content"):
        key(Options(policy=as_policy(replace(Dated(), bias=object()))))
    assert key(Options(policy=FirstIsBest("a"))).digest != key(Options(policy=FirstIsBest())).digest


class Slotted:
    """State that `vars` does not show."""

    __slots__ = ("state",)
    name: ClassVar[str] = "slotted"
    version: ClassVar[str] = "1"

    def prefer(self, site, alternatives):
        return alternatives[0].name


def test_a_policy_with_hidden_state_is_refused():
    with pytest.raises(Unkeyed, match="slots"):
        key(Options(policy=Slotted()))  # type: ignore[arg-type]


def test_the_nearest_entry_is_of_the_same_program():
    same, other = key(Options(kernels="iree", parts_for="balanced")), key(graph="h")
    entries = [("other", other.parts), ("same", same.parts)]
    assert nearest(key().parts, entries) == ("same", ["options.kernels", "options.parts_for"])
    assert nearest(key().parts, []) == ("", [])


class TestIdentity:
    def test_source_that_changed_since_the_process_began(self):
        with pytest.raises(Unkeyed, match="since this process began"):
            current_identity(began=0.0)
        other = (*identities.SEEN[1:], ("new.py", "new.py", 0))
        with pytest.raises(Unkeyed, match="since this process began"):
            current_identity(began=time.time() + 1e9, seen=other)
        found = current_identity(began=time.time() + 1e9, seen=identities.source_files())
        assert len(found.source) == 64 and found.versions["numpy"] == np.__version__
        assert {"torch-mlir", "iree-base-compiler", "ml_dtypes"} <= found.versions.keys()

    @pytest.mark.parametrize("name", OVERRIDES)
    def test_variables_that_change_what_compiles(self, name):
        began, files = time.time() + 1e9, identities.source_files()
        with pytest.raises(Unkeyed, match=f"^{name} is set"):
            current_identity(began, files, environment={name: "", "HOME": "/"})
        assert current_identity(began, files, environment={"HOME": "/"}).source

    def test_the_process_began_before_now(self, tmp_path):
        assert time.time() - 1e5 < process_start() <= time.time()
        assert time.time() - process_start(tmp_path) < 60


def digests(function: Callable[..., Any], *specs: Any) -> dict[str, str]:
    with new_context():
        return module_digests(trace(function, *specs))


X = Tensor["f32", 4, 512]
W = np.arange(512 * 3, dtype=np.float32).reshape(512, 3)


class TestProgram:
    def test_places_are_no_part_of_it(self):
        def one(x):
            return np.tanh(x @ W)

        def two(x):
            product = x @ W.copy()

            return np.tanh(product)

        assert digests(one, X) == digests(two, X)

    def test_every_bit_of_a_constant_counts(self):
        bits = [[0, 1, 2], [1 << 31, 1, 2], [0x7FC00000, 1, 2], [0x7FC00001, 1, 2], [1, 1, 2]]
        values = [np.array(b, np.uint32).view(np.float32) for b in bits]
        graphs = [digests(lambda x, v=v: x + v, Tensor["f32", 3])["graph"] for v in values]
        assert len(set(graphs)) == len(bits)

    @pytest.mark.full
    def test_weights_types_ops_and_names_are(self):
        plain = digests(lambda x: x @ W, X)
        changed = W.copy()
        changed[511, 2] = np.nextafter(changed[511, 2], np.float32(0))
        other = digests(lambda x: x @ changed, X)
        assert other["graph"] == plain["graph"] and other["constants"] != plain["constants"]
        for function, spec in [
            (lambda y: y @ W, X),
            (lambda x: np.tanh(x @ W), X),
            (lambda x: x @ W, Tensor["f32", 5, 512]),
            (lambda x: x @ W, Tensor["f32", "batch", 512]),
            (lambda x: x @ W + np.float32(1), X),
        ]:
            assert digests(function, spec)["graph"] != plain["graph"]
            assert digests(function, spec)["constants"] == plain["constants"]

    def test_a_text_is_the_program_that_it_was_written_from(self):
        with new_context() as context, ir.Location.unknown():
            module = trace(lambda x: x @ W, X)
            source = Source.of(str(module)).load(None, context)
            assert source.module is not None
            assert module_digests(source.module) == module_digests(module)

    def test_an_op_of_others_is_refused(self, monkeypatch):
        with new_context():
            module = trace(lambda x: np.tanh(x), X)
            monkeypatch.setattr(OPS["tanh"], "__module__", "elsewhere")
            with pytest.raises(Unkeyed, match=r"pyc\.tanh is defined outside"):
                module_digests(module)

    def test_a_constant_where_it_cannot_be_read_is_refused(self):
        with new_context(), ir.Location.unknown():
            module = trace(lambda x: x @ W, X)
            constant = next(
                op for op in module.body.operations[0].regions[0].blocks[0].operations
                if "value" in op.attributes
            )  # fmt: skip
            value = constant.attributes["value"]
            module.operation.attributes["pyc.note"] = ir.ArrayAttr.get([value])
            module_digests(module)
            del constant.attributes["value"]
            with pytest.raises(Unkeyed, match="cannot be read"):
                module_digests(module)


def settle(path: Path, age: float = 100.0) -> None:
    os.utime(path, (time.time() - age, time.time() - age))


class TestSources:
    """`now` is far enough in the future for the files, which were just made, to have settled."""

    @pytest.fixture
    def model(self, tmp_path):
        path = tmp_path / "model.mlir"
        path.write_text("one")
        return path

    def sources(self, tmp_path, ahead: float = 100.0) -> Sources:
        return Sources(CacheStore(tmp_path / "cache"), lambda _: None, lambda: time.time() + ahead)

    def test_a_file_that_just_changed_or_will_is_not_trusted(self, tmp_path, model):
        assert self.sources(tmp_path, 0).contents(Source.of(model)) is None
        assert self.sources(tmp_path, -1e6).contents(Source.of(model)) is None
        assert self.sources(tmp_path).contents(Source.of(model)) is not None

    def test_a_known_file_is_not_read_again(self, tmp_path, model, monkeypatch):
        first = self.sources(tmp_path).contents(Source.of(model))
        monkeypatch.setattr("pyc_mlir.cache.key.file_digest", None)
        assert self.sources(tmp_path).contents(Source.of(str(model))) == first

    def test_a_changed_file_is(self, tmp_path, model):
        """Of the same size, with its time of modification put back, or another in its place."""
        sources = self.sources(tmp_path)
        settle(model)
        first, time_then = sources.contents(Source.of(model)), model.stat().st_mtime_ns
        assert first is not None
        model.write_text("two")
        os.utime(model, ns=(time_then, time_then))
        second = sources.contents(Source.of(model))
        assert second is not None and second.digests != first.digests
        assert not first.unchanged() and second.unchanged()
        (tmp_path / "other").write_text("six")
        os.utime(tmp_path / "other", ns=(time_then, time_then))
        os.replace(tmp_path / "other", model)
        third = sources.contents(Source.of(model))
        assert third is not None and third.digests not in (first.digests, second.digests)

    def test_memos_say_which_program_a_file_is(self, tmp_path, model):
        sources = self.sources(tmp_path)
        part = {"enters": "pyc", "graph": "g", "constants": "c", "names": "n"}
        contents = sources.contents(Source.of(model))
        assert contents is not None and sources.known(contents, WHO) is None
        sources.remember(contents, WHO, part)
        assert sources.known(contents, WHO) == part
        assert sources.known(contents, replace(WHO, source="other")) is None
        model.write_text("changed while it was imported")
        sources.remember(contents, replace(WHO, source="other"), part)
        assert sources.known(contents, replace(WHO, source="other")) is None

    def test_weights_beside_an_onnx_model(self, tmp_path):
        path = external_model(tmp_path)
        sources = self.sources(tmp_path)
        first = sources.contents(Source.of(path))
        assert first is not None and len(first.states) == 2
        ranged = sources.contents(Source.of(path, ranges=(("n", (1, 8)),)))
        assert ranged is not None and ranged != first
        (tmp_path / "weights.bin").write_bytes(bytes(4096))
        second = sources.contents(Source.of(path))
        assert second is not None and second.digests[0] == first.digests[0]
        assert second.digests[1] != first.digests[1]
        (tmp_path / "weights.bin").unlink()
        assert sources.contents(Source.of(path)) is None
        for odd in ("../weights.bin", "/dev/zero"):
            assert external_model(tmp_path, odd) and sources.contents(Source.of(path)) is None

    def test_what_may_not_be_read_here_is_known_by_memos_alone(self, tmp_path, monkeypatch):
        """As of untrusted models."""
        path = external_model(tmp_path)
        assert self.sources(tmp_path).contents(Source.of(path), read=False) is None
        read = self.sources(tmp_path).contents(Source.of(path))
        for name in ("_external_names", "file_digest"):
            monkeypatch.setattr(f"pyc_mlir.cache.key.{name}", None)
        assert self.sources(tmp_path).contents(Source.of(path), read=False) == read is not None

    def test_memos_that_cannot_be_written_are_told(self, tmp_path, model):
        (tmp_path / "cache").write_text("a file")
        reported: list[CacheEvent] = []
        sources = Sources(
            CacheStore(tmp_path / "cache"), reported.extend, lambda: time.time() + 100
        )
        assert sources.contents(Source.of(model)) is not None
        assert [e.code for e in reported] == [ReasonCode.CACHE_FOLDER]

    @pytest.mark.full
    def test_no_files(self, tmp_path):
        sources = self.sources(tmp_path)
        (tmp_path / "broken.onnx").write_bytes(b"broken")
        for odd in (lambda x: x, "func.func @main", tmp_path, tmp_path / "a.onnx", "\0.onnx"):
            assert sources.contents(Source.of(odd)) is None
        assert sources.contents(Source.of(tmp_path / "broken.onnx")) is None


def external_model(folder: Path, location: str = "weights.bin") -> Path:
    """A model whose weights lie in another file."""
    import onnx
    from onnx.external_data_helper import set_external_data

    weights = onnx.numpy_helper.from_array(np.ones((32, 32), np.float32), "w")
    data = weights.raw_data
    set_external_data(weights, location, length=len(data))
    weights.ClearField("raw_data")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    made = model([node], {"x": (np.float32, (2, 32))}, [])
    made.graph.initializer.append(weights)
    made.graph.output.append(info("y", np.dtype(np.float32), (2, 32)))
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    if location == "weights.bin":
        (folder / location).write_bytes(data)
    return folder / "model.onnx"
