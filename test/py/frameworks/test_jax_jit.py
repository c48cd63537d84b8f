"""`pyc_mlir.jax`: pytrees, static arguments, dynamic sizes, gradients, composites, artifacts."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

import pyc_mlir  # noqa: E402
import pyc_mlir.jax as pyc_jax  # noqa: E402
from pyc_mlir.dialects.errors import ReasonCode  # noqa: E402

DOCS = Path(__file__).resolve().parents[3] / "docs"
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


W, X = floats(6, 4), floats(3, 6)


def close(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert isinstance(mine, jax.Array)
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


def test_pytrees_go_in_and_come_out_and_statics_are_values():
    def model(params: Any, x: Any, steps: int, *, mode: str = "sum") -> Any:
        for _ in range(steps):
            x = jnp.tanh(x @ params["w"] @ params["w"].T)
        return {"y": x, "total": (getattr(x, mode)(), x.max())}

    jitted = pyc_jax.jit(model, static_argnums=2, static_argnames="mode")
    for steps, mode in ((1, "sum"), (2, "mean"), (1, "sum")):
        got = jitted({"w": W}, X, steps, mode=mode)
        close(got, model({"w": W}, X, steps, mode=mode))
    assert len(jitted._programs) == 2
    names = [a.name for a in jitted.program({"w": W}, X, 1).signature.inputs]
    assert names == ["params['w']", "x"]


def test_closed_over_weights_become_constants():
    text = str(pyc_jax.jit(lambda x: x @ W).module(X))
    assert text.count("%arg") and "%arg1" not in text and "pyc.constant" in text


def test_one_program_serves_every_size_of_a_named_dimension():
    def model(x: Any) -> Any:
        return x.mean(0), jnp.concatenate([x, x[:1]]), x.reshape(-1) * x.shape[0]

    jitted = pyc_jax.jit(model, polymorphic_shapes=("batch, 6",))
    for size in (3, 7, 1):
        x = floats(size, 6)
        close(jitted(x), model(x))
    assert len(jitted._programs) == 1


def test_gradients_and_other_transformations_run_pyc_programs():
    def model(w: Any, x: Any, count: Any) -> Any:
        return pyc_jax.nn.softmax(x @ w) * count, count + 1

    jitted = pyc_jax.jit(model)
    count = jnp.int32(3)

    def loss(function: Any) -> Any:
        return lambda w, x: (function(w, x, count)[0] ** 2).sum()

    close(jax.grad(loss(jitted), (0, 1))(W, X), jax.grad(loss(model), (0, 1))(W, X))
    close(jax.jit(loss(jitted))(W, X), loss(model)(W, X))
    batches = jnp.stack([X, 2 * X])
    mapped = jax.vmap(lambda x: jitted(W, x, count)[0])(batches)
    close(mapped, jax.vmap(lambda x: model(W, x, count)[0])(batches))


def test_a_training_step_compiles():
    def step(params: Any, x: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = pyc_jax.nn.gelu(pyc_jax.nn.layer_norm(x, params["s"], params["b"]))
            scores = jax.nn.log_softmax(hidden @ params["w"])
            return -jnp.take_along_axis(scores, labels[:, None], 1).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {"w": W, "s": jnp.ones(6), "b": jnp.zeros(6)}
    labels = jnp.array([0, 3, 1])
    close(pyc_jax.jit(step)(params, X, labels), step(params, X, labels))


COMPOSITES = {
    "softmax": (lambda x: pyc_jax.nn.softmax(x, 0), jax.nn.softmax(X, 0), (X,)),
    "log_softmax": (pyc_jax.nn.log_softmax, jax.nn.log_softmax(X), (X,)),
    "gelu": (lambda x: pyc_jax.nn.gelu(x, approximate=False), jax.nn.gelu(X, False), (X,)),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_is_one_op_on_both_roads(name: str) -> None:
    function, want, arrays = COMPOSITES[name]
    close(jax.jit(function)(*arrays), want)
    modules = [pyc_jax.jit(function).module(*arrays)]
    exported = jax.export.export(jax.jit(function))(*arrays)
    for module in modules:
        assert re.findall(r'"pyc\.(\w+)"', str(module)) == [name]
        (made,) = pyc_mlir.interpret(module, [np.asarray(a) for a in arrays])
        close(jnp.asarray(made), want)
    program = pyc_mlir.compile(exported, cache=False)
    assert program.stats().imported.total == 1
    close(jnp.asarray(program(*map(np.asarray, arrays))), want)


def test_attention_is_one_op_with_grouped_heads_and_a_mask():
    q, k = floats(2, 5, 4, 8), floats(2, 5, 2, 8)
    for causal in (False, True):
        jitted = pyc_jax.jit(
            lambda q, k, causal: pyc_jax.nn.dot_product_attention(q, k, k, is_causal=causal),
            static_argnums=2,
        )
        close(jitted(q, k, causal), jax.nn.dot_product_attention(q, k, k, is_causal=causal))
        assert str(jitted.module(q, k, causal)).count("pyc.attention") == 1


def test_exported_bytes_and_text_are_raised_to_pyc():
    def model(x: Any) -> Any:
        return jnp.sort(jax.nn.softmax(x @ W)), jnp.argmax(x, -1)

    exported = jax.export.export(jax.jit(model))(X)
    text = jax.jit(model).lower(X).as_text()
    for source in (exported.mlir_module_serialized, bytes(exported.serialize()), text):
        program = pyc_mlir.compile(source, cache=False)
        assert program.stats().imported.foreign == 0
        close([jnp.asarray(y) for y in program(np.asarray(X))], list(model(X)))


def test_a_dynamic_export_runs_at_every_size():
    (batch,) = jax.export.symbolic_shape("batch")
    model = lambda x: (jax.nn.softmax(x @ W), x.reshape(-1), x.mean(0))  # noqa: E731
    exported = jax.export.export(jax.jit(model))(jax.ShapeDtypeStruct((batch, 6), jnp.float32))
    program = pyc_mlir.compile(exported, cache=False)
    assert program.stats().imported.foreign == 0
    for size in (2, 5):
        x = floats(size, 6)
        close([jnp.asarray(y) for y in program(np.asarray(x))], list(model(x)))


def test_a_damaged_artifact_is_an_error():
    data = jax.export.export(jax.jit(jnp.sin))(X).mlir_module_serialized
    for damaged in (data[:40], data[:-20], data[:60] + bytes(40) + data[100:]):
        with pytest.raises(pyc_mlir.PycError) as refused:
            pyc_mlir.compile(damaged, cache=False)
        assert refused.value.code in (ReasonCode.INVALID_IR, ReasonCode.NATIVE_CRASH)


def test_importing_pyc_does_not_import_jax():
    code = "import sys, pyc_mlir, pyc_mlir.api; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_examples_of_the_page_run():
    examples = re.findall(r"```python\n(.*?)```", (DOCS / "jax.md").read_text(), re.S)
    assert examples
    for example in examples:
        exec(example, {})


_KEPT = """
import atexit
import jax, numpy as np, pyc_mlir.jax
total = pyc_mlir.jax.jit(lambda x: (x * 2).sum())
kept = total(np.ones((4, 4), np.float32))
loss, _ = jax.value_and_grad(total)(np.ones((4, 4), np.float32))
atexit.register(lambda: print(float(kept), float(loss)))
"""


def test_results_that_a_script_keeps_are_freed_at_its_end() -> None:
    """IREE's bindings would report them as leaked, in dozens of lines; and they can be read."""
    run = subprocess.run([sys.executable, "-c", _KEPT], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["32.0", "32.0"]
    assert "leaked" not in run.stderr
