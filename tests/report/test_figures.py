"""What is drawn, read back from Matplotlib's own objects."""

from __future__ import annotations

import base64
import copy
import io
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image

from vhl.report.figures import figures, write_figures
from vhl.report.figures.style import PALETTE, cut, width

Content = dict[str, Any]
CLASSES = ["cat", "dog", "eel"]
SHADES = np.array([[0, 60, 120], [180, 240, 30]], np.uint8)


def address(values: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def run(group: int, seed: int, accuracy: Sequence[float | None], **columns: Any) -> Content:
    """A run of as many rounds as there are accuracies; of group 1 with virtual data."""
    rounds = list(range(1, len(accuracy) + 1))
    everything = {
        "round": rounds,
        "accuracy": list(accuracy),
        "drift": [0.5 + seed for _ in rounds],
        "virtual_accuracy": [0.9 if group else None for _ in rounds],
        "samples": [1000 * (group + 1) * r for r in rounds],
        "seconds": [(2.0 + seed) * r for r in rounds],
        "loss": {"natural": [2.0 + seed] * len(rounds)} | ({"virtual": [0.1] * len(rounds)} if group else {}),
        "theory": {},
    }
    confusion = [[8, 1, 1], [0, 6, 0], [2, 0, 3]]
    return {
        "name": f"run{group}{seed}",
        "group": group,
        "seed": seed,
        "settings": {"data.name": "digits", "partition.name": "lda", "virtual.name": "noise"},
        "columns": everything | columns,
        "problem": 0,
        "picture": 0 if group else None,
        "per_class": [0.8 + 0.1 * seed, None if seed else 0.4, 0.3],
        "last": {
            "confusion": [[*row, 4, number] for number, row in enumerate(confusion)] if group else confusion,
            "clients": [1, 0],
            "client_accuracy": [0.25, None],
        },
        "features": [],
    }


def group(label: str, plain: bool, best: float = 0.5) -> Content:
    return {"label": label, "plain": plain, "best": {"mean": best, "std": 0.0, "count": 1}}


@pytest.fixture
def content() -> Content:
    return {
        "title": "four runs",
        "whole": True,
        "groups": [group("fedavg + plain", True), group("fedavg + vhl", False)],
        "runs": [
            run(0, 0, [0.1, 0.2, 0.3]),
            run(0, 1, [0.3, 0.6, 0.5]),
            run(1, 0, [0.5, None, 0.7]),
            run(1, 1, [0.6, 0.6, 0.8, 0.9]),
        ],
        "problems": [
            {
                "classes": CLASSES,
                "sites": [],
                "counts": [[12, 0, 1], [0, 1234, 5]],
                "heterogeneity": 0.625,
                "test_samples": 21,
                "data": "digits",
                "about": "digits, lda, alpha 0.1",
            }
        ],
        "pictures": [address(SHADES)],
    }


def drawn(content: Content) -> dict[str, Figure]:
    return dict(figures(content))


def one(content: Content, name: str) -> Figure:
    return next(figure for own, figure in figures(content) if own == name)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def legend(figure: Figure) -> list[str]:
    (found,) = figure.subfigs[0].legends
    return [text.get_text() for text in found.get_texts()]


def bold(axes: Axes) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def faint(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if str(line.get_label()).startswith("_")]


def ticks(axes: Axes, which: str) -> list[str]:
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


def test_every_figure_of_the_page(content: Content) -> None:
    curves = ["accuracy-rounds", "accuracy-images", "accuracy-time", "drift", "loss", "virtual-accuracy"]
    runs = ["run-1-run00", "run-2-run01", "run-3-run10", "run-4-run11"]
    assert list(drawn(content)) == [*curves, "partition-1", "virtual-1", "per-class", *runs]


def test_what_is_missing_has_no_figure(content: Content) -> None:
    content["runs"] = content["runs"][:2]
    content["pictures"] = []
    for own in content["runs"]:
        own |= {"last": None, "per_class": None}
    names = ["accuracy-rounds", "accuracy-images", "accuracy-time", "drift", "loss", "partition-1"]
    assert list(drawn(content)) == names


# --- curves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "plain", "vhl"),
    [
        ("accuracy-rounds", [1, 2, 3], [1, 3]),
        ("accuracy-images", [1000, 2000, 3000], [2000, 6000]),
        ("accuracy-time", [2.5, 5, 7.5], [2.5, 7.5]),
    ],
)
def test_accuracy_in_the_rounds_that_all_seeds_have(
    content: Content, name: str, plain: list[float], vhl: list[float]
) -> None:
    (axes,) = one(content, name).axes
    curves = bold(axes)
    np.testing.assert_allclose(curves["fedavg + plain"].get_xdata(), plain)
    np.testing.assert_allclose(curves["fedavg + vhl"].get_xdata(), vhl)
    np.testing.assert_allclose(curves["fedavg + plain"].get_ydata(), [20, 40, 40])
    np.testing.assert_allclose(curves["fedavg + vhl"].get_ydata(), [55, 75])
    band, _ = axes.collections
    corners = band.get_paths()[0].vertices
    for place, low, high in zip(plain, (10, 20, 30), (30, 60, 50), strict=True):
        heights = corners[corners[:, 0] == place, 1]
        assert (heights.min(), heights.max()) == pytest.approx((low, high))


def test_looks(content: Content) -> None:
    figure = one(content, "accuracy-rounds")
    plain, vhl = bold(figure.axes[0]).values()
    assert (plain.get_linestyle(), vhl.get_linestyle()) == ("--", "-")
    assert (plain.get_color(), vhl.get_color()) == PALETTE[:2]
    assert (plain.get_marker(), vhl.get_marker()) == ("None", "o")  # two rounds are hardly a line
    assert legend(figure) == ["fedavg + plain", "fedavg + vhl"]


@pytest.mark.parametrize(("rounds", "accuracy", "drift"), [(19, 1, 1), (20, 3, 1), (40, 3, 3), (100, 5, 5)])
def test_windows_are_those_of_the_page(content: Content, rounds: int, accuracy: int, drift: int) -> None:
    values = np.random.default_rng(0).random((2, rounds))
    content["runs"] = [run(0, seed, own.tolist(), drift=own.tolist()) for seed, own in enumerate(values)]
    for name, window, scale in (("accuracy-rounds", accuracy, 100), ("drift", drift, 1)):
        figure = one(content, name)
        (axes,) = figure.axes
        smooth = [
            [statistics.mean(own[max(0, i - window // 2) : i + window // 2 + 1]) for i in range(rounds)]
            for own in values
        ]
        (line,) = bold(axes).values()
        np.testing.assert_allclose(line.get_ydata(), scale * np.mean(smooth, 0))
        assert len(faint(axes)) == (window > 1)
        assert any(f"running mean over {window} rounds" in text for text in texts(figure)) == (window > 1)
        for line in faint(axes):
            np.testing.assert_allclose(line.get_ydata(), scale * values.mean(0))
            assert to_hex(line.get_color()) == to_hex(PALETTE[0])
        (band,) = axes.collections
        corners = band.get_paths()[0].vertices
        assert corners[:, 1].min() == pytest.approx(scale * np.min(smooth))
        assert corners[:, 1].max() == pytest.approx(scale * np.max(smooth))


def test_one_seed_has_no_band_and_nothing_is_said_of_seeds(content: Content) -> None:
    content["runs"] = content["runs"][::2]
    figure = one(content, "accuracy-rounds")
    assert not figure.axes[0].collections
    assert not any("seed" in text for text in texts(figure))


def test_terms_of_the_loss(content: Content) -> None:
    content["runs"][3]["columns"]["loss"]["odd"] = [None] * 4  # never finite
    figure = one(content, "loss")
    natural, virtual = figure.axes
    assert [natural.get_title(), virtual.get_title()] == ["natural", "virtual"]
    assert {label: line.get_ydata()[0] for label, line in bold(natural).items()} == {
        "fedavg + plain": 2.5,
        "fedavg + vhl": 2.5,
    }
    np.testing.assert_allclose(bold(virtual)["fedavg + vhl"].get_ydata(), [0.1] * 3)
    assert list(bold(virtual)) == ["fedavg + vhl"] and legend(figure) == ["fedavg + plain", "fedavg + vhl"]


def test_theory_in_the_rounds_that_it_was_measured_in(content: Content) -> None:
    assert "theory" not in dict(figures(content))
    for own in content["runs"]:
        if own["group"] == 1:
            own["columns"]["theory"] = {
                "margin_natural": [0.25, None, 0.5, *[None] * (len(own["columns"]["round"]) - 3)]
            }
    figure = dict(figures(content))["theory"]
    (axes,) = figure.axes
    (line,) = axes.get_lines()
    assert axes.get_title() == "natural images"
    np.testing.assert_allclose(line.get_xydata(), [[1, 0.25], [3, 0.5]])


def test_drift_and_virtual_accuracy(content: Content) -> None:
    made = drawn(content)
    np.testing.assert_allclose(bold(made["drift"].axes[0])["fedavg + plain"].get_ydata(), [1, 1, 1])
    curves = bold(made["virtual-accuracy"].axes[0])
    assert list(curves) == ["fedavg + vhl"]
    np.testing.assert_allclose(curves["fedavg + vhl"].get_ydata(), [90] * 3)


def test_many_runs_have_accuracy_alone_and_the_best_methods(content: Content) -> None:
    runs = []
    for number in range(23):
        columns = {"accuracy": [number / 100] * 3, "round": [1, 2, 3]}
        columns |= {"samples": [1, 2, 3], "seconds": [1.0, 2.0, 3.0]}
        runs.append({"name": f"run{number}", "group": number, "columns": columns})
    groups = [group(f"method {number}", False, number % 7) for number in range(23)]
    made = drawn(content | {"whole": False, "runs": runs, "groups": groups})
    assert list(made) == ["accuracy-rounds", "accuracy-images", "accuracy-time"]
    figure = made["accuracy-rounds"]
    curves = bold(figure.axes[0])
    left_out = {7, 14, 21}  # the last three of those with 0: 0 itself came first
    shown = [number for number in range(23) if number not in left_out]
    assert list(curves) == [f"method {number}" for number in shown]
    assert [line.get_ydata()[0] for line in curves.values()] == pytest.approx(shown)
    looks = {(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in curves.values()}
    assert len(looks) == 20
    assert any("the best 20 of 23 methods" in text for text in texts(figure))


# --- grids and bars ------------------------------------------------------------------------------------


def test_partition(content: Content) -> None:
    figure = one(content, "partition-1")
    (axes,) = figure.axes
    assert axes.images[0].get_array().tolist() == [[12, 0, 1], [0, 1234, 5]]
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "12", (2, 0): "1", (1, 1): "1.23 k", (2, 1): "5"}
    assert ticks(axes, "y") == ["client 0: 13", "client 1: 1,239"]
    assert ticks(axes, "x") == CLASSES
    (about,) = (text for text in texts(figure) if "heterogeneity" in text)
    assert about.startswith("2 clients, 1,252 training images, 21 test images\nheterogeneity 0.62: ")


def test_many_clients_and_classes(content: Content) -> None:
    counts = np.random.default_rng(0).integers(0, 100, (250, 98))
    names = [f"class {number}" for number in range(98)]
    content["problems"][0] |= {"counts": counts.tolist(), "classes": names, "sites": ["north"] * 250}
    figure = one(content, "partition-1")
    axes, bar = figure.axes  # counts would not fit
    assert axes.images[0].get_array().tolist() == counts[:200].tolist()
    assert not axes.texts and bar.get_ylim() == (0, counts[:200].max())
    assert any("250 clients; the first 200 of them" in text for text in texts(figure))
    assert ticks(axes, "y")[0] == f"north: {counts[0].sum():,}"
    shown = {
        place: label.get_text()
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    }
    assert len(shown) < 50 and 97 in shown
    assert all(label == names[int(place)] for place, label in shown.items())


def test_confusion_with_virtual_outputs_together(content: Content) -> None:
    made = drawn(content)
    plain, _ = made["run-1-run00"].axes
    assert plain.images[0].get_array().tolist() == [[8, 1, 1], [0, 6, 0], [2, 0, 3]]
    assert ticks(plain, "x") == ticks(plain, "y") == CLASSES
    vhl, _ = made["run-3-run10"].axes
    assert vhl.images[0].get_array().tolist() == [[8, 1, 1, 4], [0, 6, 0, 5], [2, 0, 3, 6]]
    assert (ticks(vhl, "x"), ticks(vhl, "y")) == ([*CLASSES, "virtual"], CLASSES)


def test_clients_and_the_server(content: Content) -> None:
    content["problems"][0]["sites"] = ["north", "south"]
    content["runs"][3]["columns"]["accuracy"][-1] = None
    _, axes = one(content, "run-4-run11").axes
    assert ticks(axes, "y") == ["south", "north", "server"]
    widths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(widths, [25, np.nan, 80])  # the last evaluated round counts
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches][-1] == to_hex(PALETTE[1])
    assert axes.yaxis_inverted() and axes.get_xlim() == (0, 100)


def test_classes(content: Content) -> None:
    content["problems"].append(content["problems"][0] | {"classes": ["cat", "dog"]})
    content["runs"].append(run(1, 2, [0.1]) | {"problem": 1, "per_class": [0.0, 0.0]})  # of something else
    content["runs"][3]["per_class"] = None  # not evaluated
    figure = one(content, "per-class")
    (axes,) = figure.axes
    plain, vhl = axes.containers
    np.testing.assert_allclose(plain.datavalues, [85, 40, 30])
    np.testing.assert_allclose(vhl.datavalues, [80, 40, 30])
    assert [bar.get_x() + bar.get_width() for bar in plain] == pytest.approx([bar.get_x() for bar in vhl])
    assert [bar.get_x() + bar.get_width() for bar in plain] == pytest.approx([0, 1, 2])
    assert ticks(axes, "x") == CLASSES and legend(figure) == ["fedavg + plain", "fedavg + vhl"]


def test_as_many_classes_of_other_names_are_other_classes(content: Content) -> None:
    content["problems"].append(content["problems"][0] | {"classes": ["one", "two", "three"]})
    for own in content["runs"][2:]:
        own["problem"] = 1
    made = drawn(content)
    for name, classes, label in (
        ("per-class", CLASSES, "fedavg + plain"),
        ("per-class-2", ["one", "two", "three"], "fedavg + vhl"),
    ):
        (axes,) = made[name].axes
        assert ticks(axes, "x") == classes and legend(made[name]) == [label]


def test_a_class_without_test_images_has_no_bar(content: Content) -> None:
    for own in content["runs"]:
        own["per_class"][1] = None
    plain, _ = one(content, "per-class").axes[0].containers
    np.testing.assert_allclose(plain.datavalues, [85, np.nan, 30])


# --- pictures ------------------------------------------------------------------------------------------


def test_virtual_and_natural_images(content: Content) -> None:
    content["problems"][0]["natural"] = address(255 - SHADES)
    made = drawn(content)
    for name, title, values in (
        ("virtual-1", "Virtual images (noise)", SHADES),
        ("natural-1", "Natural training images (digits, lda, alpha 0.1)", 255 - SHADES),
    ):
        np.testing.assert_array_equal(made[name].axes[0].images[0].get_array()[..., 1], values)
        assert texts(made[name]) == [title, "one row a class"]


def points(axes: Axes) -> list[PathCollection]:
    return [found for found in axes.collections if len(found.get_offsets())]


def test_features(content: Content) -> None:
    saved = [
        [0.0, 1.0, 2, "server", "test"],
        [2.0, 3.0, 0, "server", "test"],
        [4.0, 5.0, 11, "client7", "virtual"],
    ]
    content["runs"][1]["features"] = [{"round": 30, "points": saved}, {"round": 4, "points": []}]
    content["runs"][2]["features"] = [{"round": 30, "points": saved[:1]}]
    content["runs"][3]["features"] = [{"round": 5, "points": saved}]  # the first seed is shown
    made = {name: figure for name, figure in figures(content) if name.startswith("features")}
    assert list(made) == ["features-4", "features-30"]
    plain, vhl = made["features-30"].axes
    assert (plain.get_title(), vhl.get_title()) == ("fedavg + plain", "fedavg + vhl")
    server, client = points(plain)
    assert server.get_offsets().tolist() == [[0, 1], [2, 3]]
    assert [to_hex(colour) for colour in server.get_facecolor()] == [PALETTE[2].lower(), PALETTE[0].lower()]
    assert client.get_offsets().tolist() == [[4, 5]] and not len(client.get_facecolor())
    assert to_hex(client.get_edgecolor()[0]) == PALETTE[1].lower()
    assert server.get_paths()[0].vertices.shape != client.get_paths()[0].vertices.shape
    assert [text.get_text() for text in plain.get_legend().get_texts()] == ["server", "client 7"]
    assert len(points(vhl)) == 1 and legend(made["features-30"]) == CLASSES
    assert [axes.texts[0].get_text() for axes in made["features-4"].axes] == ["diverged", "not saved"]


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


@pytest.fixture
def hostile(content: Content) -> Content:
    """Everything that has a name has a bad one."""
    count = len(HOSTILE)
    content["problems"][0] |= {
        "classes": HOSTILE,
        "sites": HOSTILE[::-1],
        "counts": np.arange(count**2).reshape(count, count).tolist(),
    }
    for number, own in enumerate(content["runs"]):
        own |= {"name": HOSTILE[number + 4], "per_class": [0.5] * count}
        own["settings"] = dict.fromkeys(own["settings"], HOSTILE[1])
        own["last"] = {
            "confusion": np.ones((count, count + 1), int).tolist(),
            "clients": list(range(count)),
            "client_accuracy": [0.5] * count,
        }
        own["columns"]["loss"] = dict.fromkeys(HOSTILE[2:7], own["columns"]["drift"])
        own["features"] = [{"round": 1, "points": [[0, 0, 1, "server", "test"], [1, 1, 2, "server", "test"]]}]
    others = copy.deepcopy(content["runs"][0]) | {"last": None}
    content["runs"] += [others | {"group": number} for number in range(2, count)]
    content["groups"] = [group(name, False) for name in HOSTILE]
    return content


def written(figure: Figure) -> list[Text]:
    """Without ticks beyond the axes and of hidden ones, which Matplotlib keeps but does not draw."""
    ticks = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in set(axis.get_major_ticks()) - set(axis._update_ticks() if axes.axison else ())
        for label in (tick.label1, tick.label2)
    }
    return [text for text in figure.findobj(Text) if text.get_text() and text not in ticks]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_hostile_names_are_drawn_as_text_inside_the_figure(hostile: Content) -> None:
    with matplotlib.rc_context({"text.parse_math": False}):
        for name, figure in figures(hostile):
            figure.draw_without_rendering()
            for text in written(figure):
                box = text.get_window_extent()
                assert (box.min > -1).all() and (box.max < figure.bbox.max + 1).all(), (name, text)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write some of the figures: all take seconds."""

    def choose(*names: str) -> None:
        monkeypatch.setattr(
            "vhl.report.figures.figures",
            lambda content: (pair for pair in figures(content) if pair[0] in names),
        )

    return choose


@pytest.mark.filterwarnings("error")
def test_hostile_names_in_files(hostile: Content, tmp_path: Path, only: Callable[..., None]) -> None:
    only("per-class")
    files = write_figures(hostile, tmp_path)
    assert files == [tmp_path / "per-class.png", tmp_path / "per-class.svg"]
    ElementTree.parse(files[1])
    noted = files[1].read_text(encoding="utf-8")  # Matplotlib notes what the shapes of letters say
    for name in ("&lt;script", "$x^{$", "\\$5", "quotes", "漢字", "_hidden"):
        assert name in noted


def test_names_of_files_are_short_and_differ(content: Content) -> None:
    for own in content["runs"]:
        own["name"] = "../ä/" + 300 * "x"
    content["runs"][3]["name"] = "…"
    names = list(drawn(content))[-4:]
    assert names == [*(f"run-{number}-{'x' * 59}" for number in (1, 2, 3)), "run-4-run"]


def test_the_same_numbers_make_the_same_files(
    content: Content, tmp_path: Path, only: Callable[..., None]
) -> None:
    only("run-3-run10")
    first = write_figures(content, tmp_path / "one")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black"}):
        second = write_figures(content, tmp_path / "new" / "two")
    assert [file.name for file in first] == [file.name for file in second]
    assert sorted((tmp_path / "one").iterdir()) == sorted(first)  # and nothing else
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert b"dc:date" not in one.read_bytes()
    with Image.open(first[0]) as image:
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)


def test_a_folder_that_cannot_be_written(
    content: Content, tmp_path: Path, complains: Callable[..., Any]
) -> None:
    (tmp_path / "file").touch()
    with complains("file", "cannot be written"):
        write_figures(content, tmp_path / "file")


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
