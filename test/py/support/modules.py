"""Small hand-written linalg modules and programs that several tests share."""

import io
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

import pyc_mlir
from pyc_mlir import Device, Program, Target
from pyc_mlir.artifact.artifact import Artifact, from_bytes, make_manifest
from pyc_mlir.artifact.signature import Dim, Signature, SignatureEntry
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.target.target import CpuInfo
from pyc_mlir.runtime.device import host_cpu

_ADD = {"i1": "arith.ori"} | {d: "arith.addi" for d in ("i8", "i16", "i32", "i64")}


@cache
def shared_context() -> ir.Context:
    """The context of tests that make many small modules: a context takes longer than these."""
    return new_context()


def host_target() -> Target:
    return Target.named("cpu").on(host_cpu() or CpuInfo(frozenset(), 1))


def _tensor(dims: tuple[Dim, ...], dtype: str) -> str:
    return f"tensor<{''.join(f'{d}x' if isinstance(d, int) else '?x' for d in dims)}{dtype}>"


def add_text(dims: tuple[Dim, ...] = (4,), dtype: str = "f32", loc: str = "") -> bytes:
    """``main(a, b) = a + b`` (or, for i1) as linalg, whose integers have no sign."""
    rank, dtype = len(dims), dtype.removeprefix("u")
    tensor = _tensor(dims, dtype)
    ids = ", ".join(f"d{i}" for i in range(rank))
    dynamic = [i for i, d in enumerate(dims) if not isinstance(d, int)]
    sizes = "".join(
        f"  %c{i} = arith.constant {i} : index\n  %s{i} = tensor.dim %a, %c{i} : {tensor}\n"
        for i in dynamic
    )
    return f"""
#id = affine_map<({ids}) -> ({ids})>
func.func @main(%a: {tensor}, %b: {tensor}) -> {tensor} {{
{sizes}  %e = tensor.empty({", ".join(f"%s{i}" for i in dynamic)}) : {tensor}
  %r = linalg.generic {{indexing_maps = [#id, #id, #id],
      iterator_types = [{", ".join(['"parallel"'] * rank)}]}}
      ins(%a, %b : {tensor}, {tensor}) outs(%e : {tensor}) {{
  ^bb0(%x: {dtype}, %y: {dtype}, %z: {dtype}):
    %s = {_ADD.get(dtype, "arith.addf")} %x, %y : {dtype} {loc}
    linalg.yield %s : {dtype}
  }} -> {tensor} {loc}
  return %r : {tensor}
}}
""".encode()


def signature(inputs: int, dims: tuple[Dim, ...], dtype: str, outputs: int = 1) -> Signature:
    def arguments(names: str) -> tuple[SignatureEntry, ...]:
        return tuple(SignatureEntry(name, DTYPES[dtype], dims) for name in names)

    return Signature(arguments("abcd"[:inputs]), arguments("rstu"[:outputs]))


@cache
def add_artifact(dims: tuple[Dim, ...] = (4,), dtype: str = "f32") -> Artifact:
    target = host_target()
    manifest = make_manifest(target, signature(2, dims, dtype), graph_id="add")
    return Artifact(compile_module(add_text(dims, dtype), target), manifest, (), b"module")


def add_program(
    dims: tuple[Dim, ...] = (4,), dtype: str = "f32", device: Device | None = None
) -> Program:
    return Program(add_artifact(dims, dtype), device or Device("local-sync"))


@cache
def two_plans() -> Program:
    """Products and their tanh, with two plans and an arena."""
    weight = np.ones((64, 48), np.float32) / 8

    def function(x: Any) -> Any:
        return np.tanh(x @ weight) @ weight.T, x @ weight

    ones = np.ones((8, 64), np.float32)
    return pyc_mlir.compile(
        function, [ones], device=Device("local-sync"), also_modes=["memory_first"]
    )


def ramp(*shape: int, dtype: str = "f32") -> np.ndarray:
    return np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(DTYPES[dtype])


def with_manifest(data: bytes, change: Mapping[str, Any]) -> bytes:
    """The program with these fields in its manifest, whatever they say."""
    buffer = io.BytesIO(bytes(from_bytes(data).vmfb))
    with zipfile.ZipFile(io.BytesIO(data)) as read, zipfile.ZipFile(buffer, "a") as archive:
        for name in (n for n in read.namelist() if n.startswith("pyc/")):
            content = read.read(name)
            if name == "pyc/manifest.json":
                content = json.dumps({**json.loads(content), **change}).encode()
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()
