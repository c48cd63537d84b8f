"""pyc-opt and the pass manager in process: what runs, what is refused, what is reported."""

import io
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import opt_harness
import pytest
from conftest import ALL_CASES

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Recipe, Site
from pyc_mlir.pipelines.choices.log import decisions_of, read_log
from pyc_mlir.pipelines.driver import registry
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.driver.native_passes import describe, refusal
from pyc_mlir.pipelines.driver.pass_manager import BrokenInvariant, resolve, run_pipeline
from pyc_mlir.pipelines.driver.pipeline_text import (
    PipelineError,
    Reproducer,
    parse_flags,
    parse_pipeline,
    read_reproducer,
    write_reproducer,
)
from pyc_mlir.pipelines.driver.registry import (
    MODULE_PIPELINES,
    NATIVE_PASSES,
    PASSES,
    UNPRINTED_OPTIONS,
)
from pyc_mlir.pipelines.text.diagnostics import Diagnostic, Position, expectations, verify
from pyc_mlir.tools import pyc_opt
from pyc_mlir.tools.cli.opt_driver import OptDriver
from pyc_mlir.tools.cli.opt_flags import parse_flags as parse_command_line

RETURNS = "func.func @f(%x: f32) -> f32 {\n  return %x : f32\n}\n"


@PASSES.register
@dataclass(frozen=True)
class Rename:
    """Rename every function."""

    name: ClassVar[str] = "test-rename"
    to: str = option("g", "the new name")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        names = [Alternative(self.to), Alternative("other")]
        for op in module.body.operations:
            chosen = context.choices.choose(Site(self.name, "f0"), names)
            op.attributes["sym_name"] = ir.StringAttr.get(chosen.name)
        return {"renamed": len(list(module.body.operations))}


@PASSES.register
@dataclass(frozen=True)
class Break:
    """Misbehave."""

    name: ClassVar[str] = "test-break"
    how: str = option("refuse", "refuse, raise or invalid")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        if self.how == "refuse":
            location = module.body.operations[0].location
            raise PycError(ReasonCode.UNSUPPORTED_OP, f"{location}: func.func is not liked here")
        if self.how == "raise":
            raise KeyError("a bug")
        attributes = module.body.operations[0].attributes
        attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([], []))
        return {}


@pytest.fixture
def module() -> Iterator[ir.Module]:
    with new_context():
        yield ir.Module.parse(RETURNS)


def names_of(text: str, one_by_one: bool = False) -> list[str]:
    return [str(s) for s in resolve(parse_pipeline(text), new_context(), one_by_one)]


def test_consecutive_native_passes_are_one_step() -> None:
    text = "cse,func.func(canonicalize,cse),test-rename{to=h},test-rename,symbol-dce"
    assert names_of(text) == [
        "builtin.module(cse,func.func(canonicalize,cse))",
        "test-rename{to=h}",
        "test-rename",
        "builtin.module(symbol-dce)",
    ]


def test_one_by_one_every_pass_is_a_step() -> None:
    assert names_of("cse,func.func(canonicalize,any(cse))", one_by_one=True) == [
        "builtin.module(cse)",
        "builtin.module(func.func(canonicalize))",
        "builtin.module(func.func(any(cse)))",
    ]


def test_report(module: ir.Module) -> None:
    ticks = iter(range(100))
    choices = Choices()
    report = run_pipeline(
        module,
        "cse,test-rename{to=h},canonicalize,test-rename",
        PassContext(choices=choices),
        clock=lambda: float(next(ticks)),
    )
    assert [s.name for s in report.steps] == ["cse", "test-rename", "canonicalize", "test-rename"]
    assert report.seconds == 4.0
    assert report.statistics == {"test-rename": {"renamed": 2}}
    assert [d.chosen for d in choices.log] == ["h", "g"]
    assert "@g" in str(module)


def test_nothing_runs_when_a_later_name_is_wrong(module: ir.Module) -> None:
    with pytest.raises(PipelineError, match="did you mean 'test-rename'"):
        run_pipeline(module, "test-rename,test-renaem")
    assert "@f" in str(module)


def test_flags_nest_where_the_pass_belongs() -> None:
    pipeline = parse_flags((("affine-loop-unroll", ""), ("affine-loop-tile", ""), ("cse", "")))
    (step,) = resolve(pipeline, new_context())
    assert str(step) == (
        "builtin.module(func.func(affine-loop-unroll),func.func(affine-loop-tile),cse)"
    )


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("func.func(test-rename)", 10, "runs on builtin.module, not inside 'func.func'"),
        ("builtin.module(builtin.module(test-rename))", 30, "runs on builtin.module"),
        ("any(test-rename)", 4, "runs on builtin.module, not inside 'any'"),
        ("cse(canonicalize)", 0, "options go in braces"),
        ("func.func", 0, "write func.func(...)"),
        ("canonicalize{disable-pattern=x}", 13, "did you mean 'disable-patterns'?"),
        ("canonicalize{region-simplify=x}", 29, "(the default is normal), got 'x'"),
        ("canonicalize{top-down=7}", 22, "expected true or false"),
        ("sparsifier{vll=3}", 11, "did you mean 'vl'?"),
        ("func.func(convert-math-to-libm)", 10, "write builtin.module(convert-math-to-libm)"),
        ("inline{op-pipelines=func.func(nope)}", 20, "option 'op-pipelines'"),
        ("inline{op-pipelines=func.func(sparsifier)}", 20, "cannot be an option"),
    ],
)
def test_refused_before_anything_runs(text: str, column: int, message: str) -> None:
    with pytest.raises(PipelineError) as info:
        names_of(text)
    assert message in info.value.summary
    assert info.value.column == column


def test_a_pass_that_refuses(module: ir.Module) -> None:
    with pytest.raises(PycError) as info:
        run_pipeline(module, "test-break")
    assert info.value.code is ReasonCode.UNSUPPORTED_OP


def test_a_native_pass_that_fails(module: ir.Module) -> None:
    pipeline = "one-shot-bufferize{function-boundary-type-conversion=infer-layout-map}"
    source = (
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        '  %0 = "pyc.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>\n'
        "  return %0 : tensor<4xf32>\n}"
    )
    bad = ir.Module.parse(source, module.context)
    with pytest.raises(PycError, match="op was not bufferized") as info:
        run_pipeline(bad, pipeline)
    assert info.value.code is ReasonCode.PASS_FAILED


def test_a_pass_that_leaves_an_invalid_module(module: ir.Module) -> None:
    with pytest.raises(BrokenInvariant, match="test-break left an invalid module"):
        run_pipeline(module, "test-break{how=invalid}")


def test_verify_each_can_be_switched_off(module: ir.Module) -> None:
    run_pipeline(module, "test-break{how=invalid}", verify_each=False)
    with pytest.raises(ir.MLIRError):
        module.operation.verify()


# --- the table of native passes


def test_the_wheel_knows_every_listed_pass_and_option() -> None:
    context = new_context()
    for name in NATIVE_PASSES:
        assert describe(name, context) is not None, name
    for name, options in UNPRINTED_OPTIONS.items():
        described = describe(name, context)
        assert described is not None
        assert set(options) <= set(described.options)
    assert set(UNPRINTED_OPTIONS) | MODULE_PIPELINES <= NATIVE_PASSES


@pytest.mark.parametrize(
    ("name", "anchor", "some_option"),
    [
        ("canonicalize", "any", ("max-iterations", "10")),
        ("affine-loop-tile", "func.func", ("tile-sizes", "")),
        ("affine-loop-unroll", "func.func", ("unroll-factor", "4")),
        ("one-shot-bufferize", "builtin.module", ("buffer-alignment", "64")),
        ("convert-gpu-to-nvvm", "gpu.module", ("index-bitwidth", "0")),
        ("sparsifier", "builtin.module", ("vl", "")),
    ],
)
def test_described(name: str, anchor: str, some_option: tuple[str, str]) -> None:
    described = describe(name, new_context())
    assert described is not None
    assert described.anchor == anchor
    assert some_option in described.options.items()


@pytest.mark.skipif(not ALL_CASES, reason="reads 200 MB: part of `make test-full`")
def test_the_table_names_every_pass_of_the_wheel() -> None:
    import torch_mlir

    folder = Path(torch_mlir.__path__[0]) / "_mlir_libs"
    data = (folder / "libTorchMLIRAggregateCAPI.so").read_bytes()
    words = {m.decode() for m in re.findall(rb"([a-z][a-z0-9-]{1,60})(?=\0)", data)}
    words = {w[i:] for w in words for i in range(len(w) - 1) if w[i].isalpha()}
    words -= MODULE_PIPELINES
    context = new_context()
    unknown = "does not refer to a registered pass"
    found = set()
    for word in words:
        problem = refusal(f"any({word})", context)
        if problem is None or unknown not in problem.text:
            found.add(word)
    assert found | MODULE_PIPELINES == NATIVE_PASSES


# --- diagnostics


def test_expectations_point_where_they_say() -> None:
    text = textwrap.dedent("""\
        // expected-error @below {{one}}
        // expected-note @below {{two}}
        op
        // expected-warning @above {{three}}
        op // expected-remark {{four}}
        // expected-error-re @-1 {{fi{{v.}}}}
        // expected-error @unknown {{six}}
        """)
    found = [(e.kind, e.text, e.line) for e in expectations(text, "f", 10)]
    assert found == [
        ("error", "one", 13),
        ("note", "two", 13),
        ("warning", "three", 13),
        ("remark", "four", 15),
        ("error", "fi{{v.}}", 15),
        ("error", "six", None),
    ]


def test_verify_reports_both_sides() -> None:
    expected = expectations("x // expected-error {{wanted}}\ny", "f")
    other = Diagnostic("error", "other", Position("f", 2, 1))
    problems = [p.message for p in verify(expected, [other])]
    assert problems == ["unexpected error: other", 'expected error "wanted" was not produced']
    assert len(verify(expected, [other], only_expected=True)) == 1
    wanted = Diagnostic("error", "is wanted", Position("f", 1, 5))
    assert verify(expected, [wanted]) == []


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}b", "[z-a]"])
def test_a_pattern_that_is_none_is_told_where_it_stands(pattern: str) -> None:
    text = "module {}\n  // expected-error-re @above {{a{{" + pattern + "}}}}\n"
    ran = opt_harness.run_opt(["--verify-diagnostics", "-"], text.encode())
    assert ran.status == 1
    assert "<stdin>:2:6: expected regular expressions within {{...}} of" in ran.err
    with pytest.raises(PycError, match="--remarks-filter: expected a regular expression"):
        parse_command_line([f"--remarks-filter={pattern}"])


# --- the driver, in process


def test_refusals_of_passes_are_located() -> None:
    result = opt_harness.run_opt(["--test-break"], RETURNS.encode())
    assert result.status == 1
    assert result.out == ""
    assert result.err == (
        "<stdin>:1:1: error: func.func is not liked here [UNSUPPORTED_OP]\n"
        "func.func @f(%x: f32) -> f32 {\n^\n"
    )


def test_bugs_leave_the_driver() -> None:
    with pytest.raises(KeyError):
        opt_harness.run_opt(["--test-break=how=raise"], RETURNS.encode())


def test_log_and_recipe(tmp_path: Path) -> None:
    log, again = tmp_path / "log.jsonl", tmp_path / "again.jsonl"
    first = opt_harness.run_opt(["--test-rename=to=h", f"--pyc-log={log}"], RETURNS.encode())
    assert [json.loads(line)["chosen"] for line in log.read_text().splitlines()] == ["h"]
    recipe = Recipe.from_log(decisions_of(read_log(log)))
    assert recipe.choices == {"test-rename:f0": "h"}
    log.write_text(log.read_text().replace('"chosen": "h"', '"chosen": "other"'))
    flags = [f"--pyc-recipe={log}", f"--pyc-log={again}"]
    second = opt_harness.run_opt(["--test-rename=to=h", *flags], RETURNS.encode())
    assert "@h" in first.out
    assert "@other" in second.out
    assert again.read_text() == log.read_text()


def test_a_recipe_that_does_not_fit(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    opt_harness.run_opt(["--test-rename=to=h", f"--pyc-log={log}"], RETURNS.encode())
    result = opt_harness.run_opt(["--test-rename", f"--pyc-recipe={log}"], RETURNS.encode())
    assert result.status == 1
    assert "RECIPE_MISMATCH" in result.err


@pytest.mark.parametrize(("pattern", "shown"), [("rename", 1), ("fuse", 0)])
def test_remarks(pattern: str, shown: int) -> None:
    flags = ["--test-rename", f"--remarks-filter={pattern}"]
    result = opt_harness.run_opt(flags, RETURNS.encode())
    assert result.err.count("remark: [test-rename:f0] chose g over other (heuristic)") == shown


@pytest.mark.parametrize(
    "flags",
    [
        ["--pyc-recipe=/no/such/log"],
        ["--pyc-log=/no/such/log"],
        ["--mlir-print-ir-tree-dir=/dev/null/x"],
        ["--test-break", "--mlir-pass-pipeline-crash-reproducer=/no/such/file"],
    ],
)
def test_files_that_cannot_be_used(flags: list[str]) -> None:
    result = opt_harness.run_opt(["--test-rename", *flags], RETURNS.encode())
    assert result.status == 1
    assert re.search(r"error: .*\[FILE_ACCESS\]", result.err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--verify-eahc"], "did you mean '--verify-each'?"),
        (["--test-renaem"], "did you mean '--test-rename'?"),
        (["--verify-each=maybe"], "expected true or false"),
        (["--mlir-elide-elementsattrs-if-larger=x"], "expected a number"),
        (["--pass-pipeline"], "expected TEXT, got the end of the line"),
        (["--pass-pipeline=cse", "--cse"], "got both"),
        (["--run-reproducer", "--cse"], "expected no passes"),
        (["--verify-diagnostics=some"], "expected all or only-expected"),
        (["--emit-bytecode", "--split-input-file"], "expected one module"),
        (["--mlir-print-ir-after=csse"], "expected a pass, got 'csse'; did you mean 'cse'?"),
        (["--remarks-filter=("], "expected a regular expression"),
        (["a.mlir", "b.mlir"], "expected one input file"),
    ],
)
def test_bad_command_lines(flags: list[str], message: str) -> None:
    with pytest.raises(PycError, match=re.escape(message)):
        parse_command_line(flags)


def test_command_line_forms() -> None:
    flags = ["-pass-pipeline", "cse", "--verify-each=0", "--mlir-print-ir-after=cse,sccp", "x.mlir"]
    parsed = parse_command_line([*flags, "--mlir-print-ir-after=inline", "-o=y", "-h"])
    assert parsed.pass_pipeline == "cse"
    assert parsed.input == "x.mlir"
    assert parsed.output == "y"
    assert parsed.help
    assert not parsed.verify_each
    assert parsed.mlir_print_ir_after == ("cse", "sccp", "inline")


def test_dumps_after_failures_only() -> None:
    flags = ["--test-rename", "--test-break", "--mlir-print-ir-after-failure"]
    result = opt_harness.run_opt(flags, RETURNS.encode())
    assert result.err.count("IR Dump") == 1
    assert "IR Dump After Break Failed: test-break" in result.err


def test_split_parts_run_one_by_one() -> None:
    good, bad = RETURNS, "func.func @f() {\n"
    result = opt_harness.run_opt(
        ["--split-input-file", "--test-rename"], f"{good}// -----\n{bad}// -----\n{good}".encode()
    )
    assert result.status == 1
    assert result.out.count("func.func @g") == 2
    assert result.out.count("// -----") == 1
    assert "<stdin>:5:" in result.err or "<stdin>:6:" in result.err


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"func.func @f() {\n  \xff\n}", "2:3", "expected UTF-8 text, got the byte 0xff"),
        (b'"a"() {x = ' + b"[" * 600, "1:", "at most 500 nested brackets"),
        (b"func.func @f() { return", "1:", "expected"),
        (b"ML\xefR\x00garbage", "0:0", ""),
        (b"  %0 = pyc.add %a, %b : f32", "1:", "has no custom syntax"),
    ],
)
def test_malformed_input_is_located(data: bytes, place: str, message: str) -> None:
    result = opt_harness.run_opt([], data)
    assert result.status == 1
    assert re.search(rf"^<stdin>:{place}\d*(:\d+)?: error: .*{message}", result.err, re.M)


def test_brackets_in_strings_and_comments_do_not_nest() -> None:
    text = "// " + "(" * 900 + '\nmodule attributes {test.a = "' + "[" * 900 + '"} {}\n'
    assert opt_harness.run_opt([], text.encode()).status == 0


def test_files_keep_their_name_in_locations(tmp_path: Path) -> None:
    path = tmp_path / "named.mlir"
    path.write_text(RETURNS)
    assert f'loc("{path}":1:1)' in opt_harness.run_opt([str(path), "--mlir-print-debuginfo"]).out


# --- reproducers


@pytest.mark.parametrize("pipeline", ["builtin.module(cse)", 'builtin.module(a{x="q\\\\" y=\t})'])
@pytest.mark.parametrize("verify_each", [True, False])
def test_reproducers_round_trip(pipeline: str, verify_each: bool) -> None:
    wanted = Reproducer(pipeline, verify_each)
    text = write_reproducer(RETURNS, wanted, "pyc-opt 'a\nb'")
    assert read_reproducer(text) == wanted
    assert opt_harness.run_opt([], text.encode()).status == 0


def test_no_reproducer() -> None:
    assert read_reproducer(RETURNS) is None


@pytest.mark.full
def test_mlir_opts_threading_flag_is_accepted():
    assert parse_command_line(["--mlir-disable-threading", "--cse"]).mlir_disable_threading


# The simple RUN lines of test/lit, in this process; `lit test/lit` runs all of them.


@pytest.mark.parametrize("line", opt_harness.discover(), ids=str)
def test_run_line(line: opt_harness.RunLine) -> None:
    line.check()


# Every error of pyc-opt names the file and the line.


@pytest.mark.parametrize(
    "kind",
    [
        f"tensor<{2**62}x{2**62}xf32>",
        'tensor<4xf32, "encoding">',
        "tensor<99999999999999999999xf32>",
        "i99999999999",
        "tensor<*xi99999999999>",
        "vector<0xf32>",
    ],
)
@pytest.mark.parametrize("flag", ["--pyc-fuse", "--convert-pyc-to-linalg", "--canonicalize"])
def test_every_error_names_its_file_and_line(kind: str, flag: str, tmp_path: Path) -> None:
    text = f"func.func @f(%a: f32) {{ return }}\nfunc.func @g(%a: {kind}) {{ return }}\n"
    err = io.StringIO()
    done = OptDriver(parse_command_line(["m.mlir", flag]), text.encode(), err).run()
    assert done.status == 0 or err.getvalue().startswith("m.mlir:2:"), err.getvalue()


# What the pass manager spares: verifying and running again where nothing has changed.


RUNS: list[str] = []


@PASSES.register
@dataclass(frozen=True)
class Number:
    """Set the attribute `test.number` of every function."""

    name: ClassVar[str] = "test-number"
    to: int = option(1, "the number")
    spoil: bool = option(False, "leave functions without a type")
    counts: bool = option(True, "count what changes")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        RUNS.append(self.name)
        wanted = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.to)
        changed = 0
        for op in module.body.operations:
            attributes = op.operation.attributes
            changed += "test.number" not in attributes or attributes["test.number"] != wanted
            attributes["test.number"] = wanted
            if self.spoil:
                attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([], []))
        return {"changed": changed} if self.counts else {}


def test_a_module_is_verified_after_a_change(module: ir.Module):
    with pytest.raises(BrokenInvariant, match="test-number left an invalid module"):
        run_pipeline(module, "test-number{spoil=true}")


def test_a_module_is_not_verified_after_counts_of_nothing(module: ir.Module):
    run_pipeline(module, "test-number{spoil=true}", verify_each=False)
    run_pipeline(module, "test-number")
    with pytest.raises(BrokenInvariant):
        run_pipeline(module, "test-number{counts=false}")


@pytest.mark.parametrize(
    ("pipeline", "runs"),
    [
        ("test-number,test-number,test-number,test-number", 2),
        ("test-number,test-number,test-number{to=2},test-number", 4),
        ("test-number,test-number,cse,test-number", 3),
        ("test-number{counts=false},test-number{counts=false}", 2),
    ],
    ids=["same", "another changes", "native", "no counts"],
)
def test_a_pass_that_found_nothing_to_do_waits_for_a_change(module: ir.Module, pipeline, runs):
    RUNS.clear()
    report = run_pipeline(module, pipeline)
    assert len(RUNS) == runs
    assert len(report.steps) == pipeline.count(",") + 1


@PASSES.register
@dataclass(frozen=True)
class Registered:
    """Change nothing."""

    name: ClassVar[str] = "test-registered"

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        return {}


def test_a_missing_built_in_module_is_an_unknown_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "test-absent", ("pyc_mlir.pipelines.absent", "Absent"))
    assert "test-absent" not in PASSES
    assert "test-absent" not in list(PASSES)
    with pytest.raises(PipelineError, match="unknown pass 'test-absent'"):
        resolve(parse_pipeline("test-absent"), new_context(), False)


class FakeEntryPoint:
    value = "third_party:Pass"

    def __init__(self, name: str, loaded: object) -> None:
        self.name = name
        self.loaded = loaded

    def load(self) -> object:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def test_third_parties_register_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [FakeEntryPoint("their-rename", Registered), FakeEntryPoint("broken", OSError("gone"))]
    monkeypatch.setattr(PASSES, "_entry_points", {p.name: p for p in points})
    assert PASSES["their-rename"] is Registered
    assert "their-rename" in list(PASSES)
    with pytest.raises(PycError, match=r"third_party:Pass: it does not import \(OSError: gone"):
        PASSES["broken"]


def test_names_are_taken_once() -> None:
    assert PASSES.register(Registered) is Registered
    clash: Any = type("Clash", (Registered,), {})
    with pytest.raises(PycError, match="is taken"):
        PASSES.register(clash)


@dataclass(frozen=True)
class Nameless:
    """A pass without a name."""

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    "given",
    [
        Nameless,
        dataclass(type("Still", (), {"name": "still"})),
        type("Plain", (), {"name": "plain", "run": print}),
        print,
        Registered(),
    ],
)
def test_what_is_no_pass_is_refused(
    given: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PycError) as error:
        PASSES.register(given)
    lacking = "a dataclass with `name` and `run"
    assert lacking in error.value.message and error.value.code is ReasonCode.BAD_ARGUMENT
    monkeypatch.setattr(PASSES, "_entry_points", {"theirs": FakeEntryPoint("theirs", given)})
    told = f"plugin third_party:Pass: expected {lacking}"
    ran = opt_harness.run_opt(["--theirs", "-"], b"module {}")
    assert ran.status == 1 and told in ran.err
    flags = parse_command_line(["--list-passes"])
    assert pyc_opt._work_told(flags, b"", lambda part: None) == 1
    assert told in capsys.readouterr().err
