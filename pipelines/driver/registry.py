"""The registry of passes: name -> pass class, imported on demand.

The built-in passes are a table of modules; others register through the entry point group
``pyc_mlir.passes`` (the entry point's name is the pass's name), or with `PASSES.register` from
the same process. Needs no MLIR until a pass is looked up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyc_mlir.dialects.errors import PycError, ReasonCode

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pyc_mlir.pipelines.driver.base import Pass

ENTRY_POINT_GROUP = "pyc_mlir.passes"

BUILT_IN: dict[str, tuple[str, str]] = {
    "pyc-canonicalize": ("pyc_mlir.pipelines.pyc.canonicalize", "Canonicalize"),
    "pyc-infer-shapes": ("pyc_mlir.pipelines.pyc.infer_shapes", "InferShapes"),
    "pyc-decompose": ("pyc_mlir.pipelines.pyc.decompose", "Decompose"),
    "pyc-recognize": ("pyc_mlir.pipelines.pyc.recognize.recognize", "Recognize"),
    "pyc-fold-norms": ("pyc_mlir.pipelines.pyc.fold_norms", "FoldNorms"),
    "pyc-layout": ("pyc_mlir.pipelines.pyc.layout", "Layout"),
    "pyc-chunk": ("pyc_mlir.pipelines.pyc.chunk.chunk", "Chunk"),
    "pyc-fuse": ("pyc_mlir.pipelines.pyc.fuse", "Fuse"),
    "pyc-select-kernels": ("pyc_mlir.pipelines.pyc.select_kernels", "SelectKernels"),
    "pyc-remat": ("pyc_mlir.pipelines.memory.plan_memory", "Remat"),
    "pyc-plan-memory": ("pyc_mlir.pipelines.memory.plan_memory", "PlanMemory"),
    "convert-pyc-to-linalg": ("pyc_mlir.pipelines.linalg.convert_to_linalg", "ConvertToLinalg"),
    "pyc-bufferize-arena": ("pyc_mlir.pipelines.memory.bufferize_arena", "BufferizeArena"),
}


class PassRegistry(Mapping[str, "type[Pass]"]):
    """Pass classes by name. Iteration names every available pass without importing one."""

    def __init__(self) -> None:
        self._registered: dict[str, type[Pass]] = {}
        self._entry_points: dict[str, EntryPoint] | None = None

    def register(self, pass_class: "type[Pass]") -> "type[Pass]":
        """Add a pass class under its own name; usable as a decorator.

        Raises PycError when another class has the name, and for a class that is no pass.
        """
        _require_pass(pass_class, f"register({getattr(pass_class, '__qualname__', pass_class)})")
        known = self._registered.get(pass_class.name)
        if pass_class.name in BUILT_IN or known not in (None, pass_class):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"register({pass_class.__qualname__}): expected an unused name, "
                f"`{pass_class.name}` is taken",
            )
        self._registered[pass_class.name] = pass_class
        return pass_class

    def __getitem__(self, name: str) -> "type[Pass]":
        """Return the class of the pass `name`. Raises KeyError, or PycError for a broken plugin."""
        if name in self._registered:
            return self._registered[name]
        if name in BUILT_IN:
            module, attribute = BUILT_IN[name]
            if find_spec(module) is None:
                raise KeyError(name)
            return getattr(import_module(module), attribute)
        return _load(self._plugins()[name])

    def __contains__(self, name: object) -> bool:
        if name in self._registered:
            return True
        if name in BUILT_IN:
            return find_spec(BUILT_IN[str(name)][0]) is not None
        return name in self._plugins()

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in BUILT_IN if name in self)
        yield from sorted({*self._registered, *self._plugins()} - set(BUILT_IN))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _plugins(self) -> "dict[str, EntryPoint]":
        if self._entry_points is None:
            from importlib.metadata import entry_points  # 20 ms that most runs need not pay

            self._entry_points = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
        return self._entry_points


def _load(entry_point: "EntryPoint") -> "type[Pass]":
    """Import a third party's pass. Raises PycError, naming the plugin and what went wrong."""
    try:
        loaded = entry_point.load()
    except Exception as error:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"pass `{entry_point.name}` of plugin {entry_point.value}: it does not import "
            f"({type(error).__name__}: {error}); mend or uninstall the plugin",
        ) from error
    _require_pass(loaded, f"pass `{entry_point.name}` of plugin {entry_point.value}")
    return loaded


def _require_pass(given: Any, where: str) -> None:
    named = isinstance(getattr(given, "name", None), str) and callable(getattr(given, "run", None))
    if not (named and isinstance(given, type) and is_dataclass(given)):
        expected = "a dataclass with `name` and `run(module, context)` (docs/extending.md)"
        raise PycError(ReasonCode.BAD_ARGUMENT, where=where, expected=expected, got=repr(given))


PASSES = PassRegistry()


# The names of the pinned wheel's passes, which its bindings can run but not list: found by offering
# it every string of its library, which a test repeats.
NATIVE_PASSES = frozenset(
    """
acc-bind-routine acc-cg-to-gpu acc-compute-lowering acc-declare-gpu-module-insertion
acc-emit-remarks-data acc-emit-remarks-loop acc-emit-remarks-private acc-if-clause-lowering
acc-implicit-data acc-implicit-declare acc-implicit-routine acc-legalize-serial acc-loop-tiling
acc-recipe-materialization acc-routine-lowering acc-routine-to-gpu-func acc-specialize-for-device
acc-specialize-for-host acc-to-llvm affine-data-copy-generate affine-expand-index-ops
affine-expand-index-ops-as-affine affine-fold-memref-alias-ops affine-loop-coalescing
affine-loop-fusion affine-loop-invariant-code-motion affine-loop-normalize affine-loop-tile
affine-loop-unroll affine-loop-unroll-jam affine-parallelize affine-pipeline-data-transfer
affine-raise-from-memref affine-scalrep affine-simplify-min-max affine-simplify-structures
affine-simplify-with-bounds affine-super-vectorize amdgpu-emulate-atomics
amdgpu-maskedload-to-load amdgpu-resolve-strided-metadata arith-emulate-unsupported-floats
arith-emulate-wide-int arith-expand arith-int-range-narrowing arith-unsigned-when-equivalent
arm-neon-2d-to-intr arm-sme-outer-product-fusion arm-sme-vector-legalization
arm-sve-legalize-vector-storage async-func-to-async-runtime async-parallel-for
async-runtime-policy-based-ref-counting async-runtime-ref-counting async-runtime-ref-counting-opt
async-to-async-runtime bubble-down-memory-space-casts buffer-deallocation-pipeline
buffer-deallocation-simplification buffer-hoisting buffer-loop-hoisting
buffer-results-to-out-params bufferization-lower-deallocations canonicalize
composite-fixed-point-pass control-flow-sink convert-affine-for-to-gpu convert-amdgpu-to-rocdl
convert-arith-to-amdgpu convert-arith-to-apfloat convert-arith-to-arm-sme convert-arith-to-emitc
convert-arith-to-llvm convert-arith-to-spirv convert-arm-sme-to-llvm convert-arm-sme-to-scf
convert-async-to-llvm convert-bufferization-to-memref convert-cf-to-llvm convert-cf-to-spirv
convert-complex-to-libm convert-complex-to-llvm convert-complex-to-rocdl-library-calls
convert-complex-to-spirv convert-complex-to-standard convert-elementwise-to-linalg
convert-func-to-emitc convert-func-to-llvm convert-func-to-spirv convert-gpu-to-llvm-spv
convert-gpu-to-nvvm convert-gpu-to-rocdl convert-gpu-to-spirv convert-index-to-llvm
convert-index-to-spirv convert-linalg-to-affine-loops convert-linalg-to-loops
convert-linalg-to-parallel-loops convert-linalg-to-std convert-math-to-apfloat
convert-math-to-emitc convert-math-to-funcs convert-math-to-libm convert-math-to-llvm
convert-math-to-nvvm convert-math-to-rocdl convert-math-to-spirv convert-math-to-xevm
convert-memref-to-emitc convert-memref-to-spirv convert-nvgpu-to-nvvm convert-nvvm-to-llvm
convert-openacc-to-scf convert-openmp-to-llvm convert-parallel-loops-to-gpu
convert-pdl-to-pdl-interp convert-scf-to-cf convert-scf-to-emitc convert-scf-to-openmp
convert-scf-to-spirv convert-shape-constraints convert-shape-to-std convert-shard-to-mpi
convert-spirv-to-llvm convert-tensor-to-linalg convert-tensor-to-spirv convert-to-emitc
convert-to-llvm convert-ub-to-llvm convert-ub-to-spirv convert-vector-to-amx
convert-vector-to-arm-sme convert-vector-to-gpu convert-vector-to-llvm convert-vector-to-scf
convert-vector-to-spirv convert-vector-to-xegpu convert-xegpu-to-xevm convert-xevm-to-llvm cse
decorate-spirv-composite-type-layout drop-equivalent-buffer-results duplicate-function-elimination
eliminate-empty-tensors empty-tensor-to-alloc-tensor enable-arm-streaming
ensure-debug-info-scope-on-llvm-func expand-realloc expand-strided-metadata
finalize-memref-to-llvm flatten-memref fold-memref-alias-ops fold-tensor-subset-ops
form-expressions generate-runtime-verification gpu-async-region gpu-decompose-memrefs
gpu-eliminate-barriers gpu-kernel-outlining gpu-launch-sink-index-computations
gpu-lower-to-nvvm-pipeline gpu-lower-to-rocdl-pipeline gpu-lower-to-xevm-pipeline
gpu-map-parallel-loops gpu-module-to-binary gpu-to-llvm inline int-range-optimizations
lift-cf-to-scf linalg-block-pack-matmul linalg-fold-into-elementwise linalg-fold-unit-extent-dims
linalg-fuse-elementwise-ops linalg-generalize-named-ops linalg-inline-scalar-operands
linalg-morph-ops linalg-specialize-generic-ops llvm-add-comdats llvm-legalize-for-export
llvm-optimize-for-nvvm-target llvm-request-c-wrappers llvm-target-to-data-layout
llvm-target-to-target-features llvm-use-default-visibility loop-invariant-code-motion
loop-invariant-subset-hoisting lower-affine lower-host-to-llvm lower-quant-ops
lower-sparse-foreach-to-scf lower-sparse-iteration-to-scf lower-sparse-ops-to-foreach
lower-vector-mask lower-vector-multi-reduction lower-vector-to-from-elements-to-shuffle-tree
map-memref-spirv-storage-class math-expand-ops math-extend-to-supported-types math-sincos-fusion
math-uplift-to-fma mem2reg memref-elide-reinterpret-cast memref-emulate-wide-int memref-expand
mlgo-add-reflection-map mlprogram-pipeline-globals normalize-memrefs normalize-quant-types
nvgpu-optimize-shared-memory nvvm-attach-target offload-livein-value-canonicalization
offload-target-verifier omp-host-op-filter omp-mark-declare-target
omp-offload-privatization-prepare omp-stack-to-shared one-shot-bufferize
openacc-legalize-data-values optimize-allocation-liveness outline-shape-computation
ownership-based-buffer-deallocation pre-sparsification-rewrite print-ir print-op-stats
promote-buffers-to-stack raise-scf-to-affine raise-wasm-mlir reconcile-unrealized-casts
reify-result-shapes remove-dead-values remove-shape-constraints
resolve-ranked-shaped-type-result-dims resolve-shaped-type-result-dims rocdl-attach-target
scalarize-single-element-tensor-return sccp scf-for-loop-canonicalization scf-for-loop-peeling
scf-for-loop-range-folding scf-for-loop-specialization scf-for-to-while scf-forall-to-for
scf-forall-to-parallel scf-parallel-for-to-nested-fors scf-parallel-loop-fusion
scf-parallel-loop-specialization scf-parallel-loop-tiling set-llvm-module-datalayout
shape-to-shape-lowering shard-partition shard-simplify sharding-propagation
simplify-depthwise-conv snapshot-op-locations sparse-assembler sparse-buffer-rewrite
sparse-gpu-codegen sparse-reinterpret-map sparse-space-collapse sparse-storage-specifier-to-llvm
sparse-tensor-codegen sparse-tensor-conversion sparse-vectorization sparsification
sparsification-and-bufferization sparsifier spirv-attach-target spirv-canonicalize-gl
spirv-lower-abi-attrs spirv-promote-to-replicated-constants spirv-rewrite-inserts
spirv-unify-aliased-resource spirv-update-vce spirv-webgpu-prepare sroa stage-sparse-ops
static-memory-planner-analysis strip-debuginfo strip-func-quant-types symbol-dce symbol-privatize
test-arm-sme-tile-allocation test-scf-parallel-loop-collapsing topological-sort
tosa-arith-const-to-tosa-const tosa-attach-target tosa-convert-integer-type-to-signless
tosa-downgrade-1-1-to-1-0 tosa-experimental-input-shape tosa-infer-shapes
tosa-layerwise-constant-fold tosa-make-broadcastable tosa-narrow-f64-to-f32 tosa-narrow-i64-to-i32
tosa-optional-decompositions tosa-reduce-transposes tosa-to-arith tosa-to-linalg
tosa-to-linalg-named tosa-to-linalg-pipeline tosa-to-mlprogram tosa-to-scf tosa-to-spirv-tosa
tosa-to-spirv-tosa-mark-graph-constants tosa-to-tensor tosa-validate transform-dialect-check-uses
transform-infer-effects transform-interpreter transform-preload-library trivial-dce view-op-graph
wrap-emitc-func-in-class xegpu-blocking xegpu-optimize-peephole xegpu-propagate-layout
xegpu-sg-to-lane-distribute xegpu-vector-linearize xegpu-wg-to-sg-distribute xevm-attach-target
    """.split()  # noqa: SIM905  (a list would take 320 lines)
)

# Names of whole pipelines that abort the process when they are nested in anything but a module.
MODULE_PIPELINES = frozenset(
    {
        "gpu-lower-to-nvvm-pipeline",
        "gpu-lower-to-rocdl-pipeline",
        "gpu-lower-to-xevm-pipeline",
        "sparsifier",
        "tosa-to-linalg-pipeline",
    }
)

# Options that the printed form leaves out while they are empty: lists, and those of pipelines.
# A pass, its options, and a semicolon.
UNPRINTED_OPTIONS: dict[str, tuple[str, ...]] = {
    name: tuple(options)
    for name, *options in map(
        str.split,
        """
affine-loop-tile tile-sizes;
affine-super-vectorize test-fastest-varying virtual-vector-size;
arith-emulate-unsupported-floats source-types;
buffer-deallocation-pipeline private-function-dynamic-ownership;
canonicalize disable-patterns enable-patterns filter-dialects;
convert-gpu-to-nvvm allowed-dialects;
convert-gpu-to-rocdl allowed-dialects;
convert-to-emitc filter-dialects;
convert-to-llvm filter-dialects;
gpu-lower-to-nvvm-pipeline allow-pattern-rollback cubin-chip cubin-features cubin-format
    cubin-triple host-bare-ptr-calling-convention index-bitwidth kernel-bare-ptr-calling-convention
    opt-level ptxas-cmd-options;
gpu-lower-to-rocdl-pipeline abi binary-format chip features host-bare-ptr-calling-convention
    index-bitwidth kernel-bare-ptr-calling-convention opt-level rocdl-cmd-options triple wave64;
gpu-lower-to-xevm-pipeline binary-format enable-vector-to-xegpu host-bare-ptr-calling-convention
    igc-cmd-options kernel-bare-ptr-calling-convention math-extend-extra-types opt-level
    supported-target-types unsupported-source-types use-64bit-index xegpu-op-level
    xevm-module-matcher zebin-chip zebin-triple;
gpu-module-to-binary l;
inline op-pipelines;
linalg-block-pack-matmul block-factors mnk-order mnk-padded-multiples;
math-extend-to-supported-types extra-types;
nvvm-attach-target l;
one-shot-bufferize dialect-filter no-analysis-func-filter;
rocdl-attach-target l;
scf-parallel-loop-tiling parallel-loop-tile-sizes;
sparsifier create-sparse-deallocs enable-arm-neon enable-arm-sve enable-buffer-initialization
    enable-gpu-libgen enable-index-optimizations enable-runtime-library enable-x86 gpu-chip
    gpu-features gpu-format gpu-num-threads gpu-triple parallelization-strategy
    reassociate-fp-reductions sparse-emit-strategy test-bufferization-analysis-only vl;
spirv-attach-target caps exts;
test-scf-parallel-loop-collapsing collapsed-indices-0 collapsed-indices-1 collapsed-indices-2;
tosa-attach-target extensions profiles;
tosa-to-linalg-pipeline validation;
transform-interpreter debug-bind-trailing-args;
xevm-attach-target l
        """.split(";"),  # noqa: SIM905
    )
}
