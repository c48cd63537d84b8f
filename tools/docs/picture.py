"""A picture of `pyc-explain`'s report as an SVG file: live memory and the arena of one region.

    python -m pyc_mlir.tools.docs.picture MODEL.vmfb -o docs/report.svg

README.md shows the encoder block's. The picture has the report's own charts and style, and nothing
that reacts to a pointer.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pyc_mlir.artifact.artifact import read
from pyc_mlir.artifact.memory import RegionReport, from_bytes
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.tools.explain import charts
from pyc_mlir.tools.page.document import STYLE

# Patterns of the page stand outside of the charts; here the fills do without.
_FILLS = ".b.in-place { fill: var(--place-fill); } .b.again { fill: var(--again-fill); }"
_SPACE = 12


def picture(region: RegionReport) -> str:
    """Draw both charts of a region, one above the other."""
    layout = region.layouts[region.chosen]
    arena = charts.arena_chart(region, layout, layout.arena_bytes, layout.steps)
    placed, width, top = [], 0, _SPACE
    for left, chart in ((0, _drawing(charts.live_chart(region))), (charts.AXIS, _drawing(arena))):
        across, down = (
            int(float(v)) for v in re.findall(r'(?:width|height)="([\d.]+)"', chart)[:2]
        )
        placed.append(chart.replace("<svg", f'<svg x="{left}" y="{top}"', 1))
        width, top = max(width, left + across), top + down + _SPACE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" '
        f'font-family="system-ui, sans-serif"><style>{_style()}</style>'
        f'<rect width="{width}" height="{top}" fill="var(--surface)"/>{"".join(placed)}</svg>\n'
    )


def _style() -> str:
    """Return the colours of the light theme, and the rules that the report has for its charts."""
    css = STYLE.read_text("utf-8")
    charts = css[css.index(".tick {") : css.index("@media print")]
    return css[: css.index("@media")] + charts + _FILLS


def _drawing(chart: str) -> str:
    """Return the last SVG element of a chart, without tooltips."""
    drawing = chart[chart.rindex("<svg") : chart.rindex("</svg>") + len("</svg>")]
    return re.sub(r"<title>.*?</title>", "", drawing, flags=re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture of the region with the largest arena."""
    parser = argparse.ArgumentParser("picture", description="Write a report's picture as SVG.")
    parser.add_argument("model", type=Path, help="a program that `pyc-compile` wrote")
    parser.add_argument("-o", dest="out", type=Path, required=True, help="the SVG file")
    options = parser.parse_args(argv)
    regions = from_bytes(read(options.model).memory).regions
    write_file(options.out, picture(max(regions, key=_arena)).encode())
    return 0


def _arena(region: RegionReport) -> int:
    return region.layouts[region.chosen].arena_bytes


if __name__ == "__main__":
    sys.exit(main())
