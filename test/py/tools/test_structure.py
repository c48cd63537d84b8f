"""The numbers about the sources' structure, on small checkouts."""

from xml.etree import ElementTree

import pytest

from pyc_mlir.artifact.memory_report import RegionReport
from pyc_mlir.pipelines.memory.layout import ArenaLayout, Rectangle
from pyc_mlir.tools.docs.picture import picture
from pyc_mlir.tools.docs.structure import Checkout, cycles, table


@pytest.fixture
def checkout(tmp_path):
    files = {
        "dialects/a.py": "from pyc_mlir.dialects.b import f\nSTEP_FLOPS = 3\n",
        "dialects/b.py": "def f(also_modes):\n    from pyc_mlir.dialects import a\n    return a\n",
        "dialects/__init__.py": "",
        "pipelines/sub/c.py": "if TYPE_CHECKING:\n    from pyc_mlir.tools import d\n",
        "tools/d.py": "from pyc_mlir.pipelines.sub.c import g\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Checkout(tmp_path)


def test_numbers_of_a_small_checkout(checkout):
    assert checkout.modules_by_folder == {"dialects": 2, "pipelines/sub": 1, "tools": 1}
    assert sorted(checkout.lines) == [1, 2, 2, 3]
    assert checkout.functions == [3]
    assert cycles(checkout.edges) == [{"pyc_mlir.dialects.a", "pyc_mlir.dialects.b"}]
    assert cycles(checkout.folder_edges) == []
    assert (checkout.spelled(), checkout.cost_homes()) == (1, 1)


def test_a_table_has_a_column_for_each_checkout(checkout):
    text = table([checkout, checkout], ("before", "after"), run=False)
    assert text.startswith("| | before | after |\n|---|---|---|\n")
    assert "| import cycles of files | 1, of 2 | 1, of 2 |\n" in text


@pytest.mark.full
def test_a_picture_holds_both_charts_and_nothing_that_moves():
    rectangles = (Rectangle("x", 0, 0, 1, 0, 64), Rectangle("y<", 0, 1, 2, 64, 128))
    layout = ArenaLayout(192, (), rectangles)
    text = picture(RegionReport("r", (), {"iree": layout}, "iree"))
    drawing = ElementTree.fromstring(text)
    assert len(drawing.findall("{http://www.w3.org/2000/svg}svg")) == 2
    assert "data-" not in text and "<title>" not in text and "<script" not in text
