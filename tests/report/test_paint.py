"""Matplotlib draws what a figure says, read back from its own objects."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Sheet
from matplotlib.text import Text
from PIL import Image

from vhl.report.figure import (
    AnyPanel,
    Band,
    Bar,
    Bars,
    Cloud,
    Curves,
    Figure,
    Heat,
    Picture,
    Points,
    Series,
)
from vhl.report.looks import LIGHT, Look, look
from vhl.report.paint import paint, write_figures
from vhl.report.paint.letters import cut, width

CLASSES = ["cat", "dog", "eel"]
PLACES = {"round": np.array([1.0, 2, 4]), "seconds": np.array([2.5, 5, 10])}


def figure(*panels: AnyPanel, name: str = "figure", **more: Any) -> Figure:
    return Figure(name=name, panels=panels, **{"title": "Title", "subtitle": "how to read it", **more})


def drawn(*panels: AnyPanel, **more: Any) -> list[Axes]:
    return paint(figure(*panels, **more)).axes


def array(*values: float) -> Any:
    return np.array(values)


def texts(sheet: Sheet) -> list[str]:
    return [text.get_text() for text in sheet.findobj(Text) if text.get_text()]


def legend(sheet: Sheet) -> list[str]:
    return [text.get_text() for found in sheet.subfigs[0].legends for text in found.get_texts()]


def ticks(axes: Axes, which: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


# --- curves --------------------------------------------------------------------------------------------

SMOOTH = Band(array(2, 3, 4), array(1, 2, 3), array(4, 5, 7))
CURVE = Series("ours", look(1), PLACES, {1: Band(array(1, 5, 3)), 3: SMOOTH}, 2, marked=True)
PLAIN = Series("plain", look(0, plain=True), PLACES, {1: Band(array(1, 1, 1)), 3: Band(array(2, 2, 2))})


@pytest.mark.parametrize("axis", ["round", "seconds"])
def test_lines_and_bands_are_the_series(axis: str) -> None:
    (axes,) = drawn(Curves(y="drift", axes={axis: "along"}, series=[PLAIN, CURVE], window=3))
    faint, plain, other, bold = axes.lines
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("along", "drift")
    for line, values in ((faint, [1, 1, 1]), (plain, [2, 2, 2]), (other, [1, 5, 3]), (bold, [2, 3, 4])):
        assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == (PLACES[axis].tolist(), values)
    assert faint.get_linewidth() < plain.get_linewidth()
    assert [to_hex(line.get_color()) for line in (plain, bold)] == [colour.lower() for colour in LIGHT[:2]]
    assert (plain.get_linestyle(), bold.get_linestyle()) == ("--", "-")
    assert (plain.get_marker(), bold.get_marker()) == ("None", "o")
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    for place, low, high in zip(PLACES[axis], (1, 2, 3), (4, 5, 7), strict=True):
        at = corners[corners[:, 0] == place, 1]
        assert (at.min(), at.max()) == (low, high)


def test_without_a_window_no_line_is_faint() -> None:
    (axes,) = drawn(Curves(axes={"round": ""}, series=[CURVE]))
    assert [line.get_ydata().tolist() for line in axes.lines] == [[1, 5, 3]]


def test_titles_notes_and_one_legend_for_all_panels() -> None:
    empty = Curves(title="second", note="not run", axes={"round": ""}, series=[])
    floor = Series("", look(0), PLACES, {1: SMOOTH})
    sheet = paint(figure(Curves(title="first", axes={"round": ""}, series=[PLAIN, floor]), empty))
    assert [axes.get_title() for axes in sheet.axes] == ["first", "second"]
    assert {"Title", "how to read it", "not run"} <= set(texts(sheet)) and legend(sheet) == ["plain"]
    panels = [Curves(axes={"round": ""}, series=[own]) for own in (PLAIN, CURVE)]
    assert legend(paint(figure(*panels))) == ["plain", "ours"]
    sheet = paint(figure(*panels, own_legends=True))
    assert legend(sheet) == [] and [len(axes.get_legend().get_texts()) for axes in sheet.axes] == [1, 1]


def test_as_many_looks_as_methods() -> None:
    series = [Series(str(number), look(number), PLACES, {1: SMOOTH}) for number in range(20)]
    sheet = paint(figure(Curves(axes={"round": ""}, series=series)))
    for lines in (sheet.axes[0].lines, sheet.subfigs[0].legends[0].get_lines()):
        assert len({(line.get_color(), str(line._dash_pattern)) for line in lines}) == 20
    bars = [Bar(str(number), look(number), array(50)) for number in range(20)]
    (axes,) = drawn(Bars(names=["cat"], bars=bars))
    assert len({(to_hex(bar.get_facecolor()), bar.get_hatch()) for bar in axes.patches}) == 20


# --- counts and bars -----------------------------------------------------------------------------------


def test_counts_as_shades_with_numbers() -> None:
    counts = np.array([[12, 0, 1], [0, 1234, 5]])
    rows = ["client 0: 13", "client 1: 1,239"]
    (axes,) = drawn(Heat(x="class", rows=rows, columns=CLASSES, counts=counts, of=""))
    assert axes.images[0].get_array().tolist() == counts.tolist()
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "12", (2, 0): "1", (1, 1): "1.23 k", (2, 1): "5"}
    assert (ticks(axes, "x"), ticks(axes, "y")) == (CLASSES, rows)


def test_more_counts_than_there_is_room_for() -> None:
    counts = np.random.default_rng(0).integers(0, 100, (200, 98))
    names = [f"class {number}" for number in range(98)]
    rows = [f"client {number}" for number in range(200)]
    axes, bar = drawn(Heat(rows=rows, columns=names, counts=counts, of=""))
    assert axes.images[0].get_array().tolist() == counts.tolist()
    assert not axes.texts and bar.get_ylim() == (0, counts.max())
    shown = dict(zip(axes.get_xticks().tolist(), ticks(axes, "x"), strict=True))
    assert len(shown) < 50 and 97 in shown
    assert all(label == names[int(place)] for place, label in shown.items())


def test_bars_side_by_side() -> None:
    bars = [Bar("a", look(0), array(85, np.nan, 30)), Bar("b", look(1), array(80, 40, 30), grey=2)]
    (axes,) = drawn(Bars(y="accuracy", names=CLASSES, bars=bars))
    first, second = axes.containers
    np.testing.assert_allclose(first.datavalues, [85, np.nan, 30])
    np.testing.assert_allclose(second.datavalues, [80, 40, 30])
    assert [bar.get_x() + bar.get_width() for bar in first] == pytest.approx([0, 1, 2])
    assert [bar.get_x() for bar in second] == pytest.approx([0, 1, 2])
    grey = to_hex("0.6")
    assert [to_hex(bar.get_facecolor()) for bar in second] == [grey, grey, LIGHT[1].lower()]
    assert axes.get_ylim() == (0, 100) and ticks(axes, "x") == CLASSES


# --- images and points ---------------------------------------------------------------------------------


def test_a_picture() -> None:
    values, file = np.array([[0, 60, 120], [180, 240, 30]], np.uint8), io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    (axes,) = drawn(Picture(address=address))
    np.testing.assert_array_equal(axes.images[0].get_array()[..., 1], values)


def test_points_by_class_model_and_kind() -> None:
    clouds = [
        Cloud("server", False, array(0, 2), array(1, 3), np.array([2, 0])),
        Cloud("client7", True, array(4), array(5), np.array([11])),
    ]
    shown = Points(title="ours", models=["server", "client7"], clouds=clouds, classes=CLASSES)
    sheet = paint(figure(shown, Points(note="not saved", classes=CLASSES)))
    server, client = sheet.axes[0].collections
    assert server.get_offsets().tolist() == [[0, 1], [2, 3]] and client.get_offsets().tolist() == [[4, 5]]
    assert [to_hex(colour) for colour in server.get_facecolor()] == [LIGHT[2].lower(), LIGHT[0].lower()]
    assert not len(client.get_facecolor()) and to_hex(client.get_edgecolor()[0]) == LIGHT[1].lower()
    assert server.get_paths()[0].vertices.shape != client.get_paths()[0].vertices.shape
    models = sheet.axes[0].get_legend()
    assert models is not None and [text.get_text() for text in models.get_texts()] == ["server", "client 7"]
    assert legend(sheet) == CLASSES
    others = Points(models=["server"], clouds=clouds[:1], classes=["one", "two", "three"])
    assert legend(paint(figure(shown, others))) == []  # a colour would be two classes


# --- names and files -----------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "$x^{$ costs \\$5 $",
    "\"quotes\" & 'more' --> ",
    "rocket 🚀 漢字",
    "_hidden",
    "lines\nand\x00\x1b \udc80",
    "W" * 200,
    "word " * 40,
    "",
]


def hostile() -> list[Figure]:
    """Everything that has a name has a bad one."""
    count = len(HOSTILE)
    values, number = np.full(count, 50.0), np.arange(count)
    series = [Series(name, look(i), PLACES, {1: SMOOTH}) for i, name in enumerate(HOSTILE)]
    bars = [Bar(name, look(i), values) for i, name in enumerate(HOSTILE)]
    clouds = [Cloud("server", False, values, values, number), Cloud("client1", True, values, values, number)]
    named = {"title": HOSTILE[7], "y": HOSTILE[2]}
    every: list[AnyPanel] = [
        Curves(**named, axes={"round": HOSTILE[3]}, series=series),
        Bars(**named, names=HOSTILE, bars=bars),
        Heat(**named, rows=HOSTILE, columns=HOSTILE, counts=np.ones((count, count), int), of=""),
        Points(**named, models=["server", "client1"], clouds=clouds, classes=HOSTILE),
    ]
    whole = [figure(*[panel] * 2, title=HOSTILE[6], subtitle=HOSTILE[7]) for panel in every]
    return [*whole, figure(every[2], every[1], title=HOSTILE[1]), figure(every[2], title=HOSTILE[7])]


def written(sheet: Sheet) -> list[Text]:
    """Without ticks beyond the axes and of hidden ones, which Matplotlib keeps but does not draw."""
    ticks = {
        label
        for axes in sheet.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in set(axis.get_major_ticks()) - set(axis._update_ticks() if axes.axison else ())
        for label in (tick.label1, tick.label2)
    }
    return [text for text in sheet.findobj(Text) if text.get_text() and text not in ticks]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_hostile_names_are_drawn_as_text_inside_the_figure() -> None:
    for own in hostile():
        sheet = paint(own)
        sheet.draw_without_rendering()
        for text in written(sheet):
            box = text.get_window_extent()
            assert (box.min > -1).all() and (box.max < sheet.bbox.max + 1).all(), (own, text)


@pytest.mark.filterwarnings("error")
def test_hostile_names_in_files(tmp_path: Path) -> None:
    files = write_figures(hostile()[1:2], tmp_path)
    assert files == [tmp_path / "figure.png", tmp_path / "figure.svg"]
    ElementTree.parse(files[1])
    noted = files[1].read_text(encoding="utf-8")  # Matplotlib notes what the shapes of letters say
    for name in ("&lt;script", "$x^{$", "\\$5", "quotes", "漢字", "_hidden"):
        assert name in noted


def test_the_same_numbers_make_the_same_files(tmp_path: Path) -> None:
    own = figure(Bars(names=CLASSES, bars=[Bar("a", Look(0), array(1, 2, 3))]))
    first = write_figures([own], tmp_path / "one")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "savefig.dpi": 50}):
        second = write_figures([own], tmp_path / "new" / "two")
    assert sorted((tmp_path / "one").iterdir()) == sorted(first)  # and nothing else
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes() and b"dc:date" not in one.read_bytes()
    with Image.open(first[0]) as image:
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)


def test_a_folder_that_cannot_be_written(tmp_path: Path, complains: Callable[..., Any]) -> None:
    (tmp_path / "file").touch()
    with complains("file", "cannot be written"):
        write_figures([figure(Points())], tmp_path / "file")


@pytest.mark.parametrize("text", [*HOSTILE[:4], *HOSTILE[6:8], "i" * 60 + "W" * 60])
@pytest.mark.parametrize("lines", [1, 2])
def test_cut(text: str, lines: int) -> None:
    made = cut(text, 1.0, lines).split("\n")
    assert len(made) <= lines
    assert all(width(line) <= 1 for line in made)
    whole = " ".join(text.split())
    assert "".join(made).replace(" ", "") == whole.replace(" ", "") or "…" in made[-1]
    assert whole.startswith(made[0].partition("…")[0]) and whole.endswith(made[-1].rpartition("…")[2])
    assert lines == 1 or width(made[0]) > 0.5 or len(made) == 1
