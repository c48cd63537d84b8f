"""IREE's own placement, read off its passes, is the one that it allocates."""

from typing import Any

import pytest
from stream_programs import Program, at_stream, branches, chain, layered

from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.pipelines.memory.stream_apply import watch
from pyc_mlir.pipelines.streams.ir import constant_of, find, maker

TO_ASYNC = (
    "iree-util-verify-initialization-order,iree-stream-tensor-transformation-pipeline,"
    "iree-stream-async-transformation-pipeline"
)


def layouts_of(program: Program) -> list[tuple[ArenaLayout | None, int | None]]:
    """Per pack IREE's layout, and the bytes of the transients that it allocates."""
    found = []
    with at_stream(program.code) as session:
        session.run_passes("iree-stream-schedule-allocation")
        with session.context:
            module = session.module
            executes = find(module, "stream.cmd.execute")
            watched = []
            for execute in executes:
                allocas = [op for v in execute.operands if (op := maker(v)) and is_alloca(op)]
                makers = [maker(op.operands[0]) for op in allocas]
                packs = [p for p in makers if p and p.name == "stream.resource.pack"]
                watched += [(watch(execute, p), p.results[0]) for p in packs]
            totals = [next(iter(total.uses)) for _, total in watched]
            uses = [(use.owner.operation, use.operand_number) for use in totals]
            assert all(seen is None or seen.layout() is None for seen, _ in watched)
            session.run_passes("any(iree-stream-layout-slices)")
            for (seen, _), (op, place) in zip(watched, uses, strict=True):
                layout = None if seen is None else seen.layout(2.0)
                found.append((layout, constant_of(op.operands[place])))
    return found


def is_alloca(op: Any) -> bool:
    return op.name == "stream.resource.alloca"


@pytest.mark.parametrize("program", [chain(), branches(regions=2), layered(3, ops=40)])
def test_the_layout_is_what_is_allocated(program):
    found = layouts_of(program)
    assert found
    for layout, total in found:
        assert layout is not None
        assert layout.arena_bytes == total
        assert 0 < layout.peak_bytes <= layout.arena_bytes and layout.seconds == 2.0
        for a in layout.rectangles:
            for b in layout.rectangles:
                apart = a.last < b.first or a.offset + a.bytes <= b.offset
                assert a is b or apart or b.last < a.first or b.offset + b.bytes <= a.offset


def test_slices_have_the_names_of_their_writers():
    ((layout, _),) = layouts_of(chain())
    assert layout is not None
    shapes = ("32x32x16", "32x64x32", "32x96x64")
    expected = [f"main_dispatch_{i}_matmul_like_{shape}_f32" for i, shape in enumerate(shapes)]
    assert [r.buffer for r in layout.rectangles] == expected


def test_unknown_sizes_have_no_layout():
    assert [layout for layout, _ in layouts_of(branches(rows=None))] == [None]
