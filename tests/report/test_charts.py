"""Charts under the hands of a reader: mouse, fingers and keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vhl.report.looks import DARK, LIGHT
from vhl.report.write import write_report
from vhl.runs.folder import RunFolder

Write = Callable[..., RunFolder]


@pytest.fixture(scope="module")
def report(compared: list[RunFolder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(compared, file)
    return file


@pytest.fixture
def look(report: Path, open_in_browser: Any) -> Iterator[Any]:
    with open_in_browser(report, viewport={"width": 1280, "height": 800}) as look:
        yield look
        assert look.said == []


def box(look: Any, chart: str) -> tuple[float, float, float, float]:
    look.see(chart)
    found = look.page.locator(f"#chart-{chart}").bounding_box()
    return found["x"], found["y"], found["width"], found["height"]


def hover(look: Any, chart: str, across: float) -> str:
    """What stands beside the mouse at a share of the chart's width."""
    left, top, width, height = box(look, chart)
    look.page.mouse.move(left + across * width, top + 0.4 * height)
    tip = look.page.locator(f"#chart-{chart} > div").last
    tip.wait_for()
    return str(tip.text_content())


MODEL = "name => report.charts.get(name).instance.getModel()"
EXTENT = f"name => ({MODEL})(name).getComponent('xAxis').axis.scale.getExtent()"


def zoom(look: Any, chart: str) -> list[float]:
    """Drag over a part; returns from where to where the axis goes then."""
    left, top, width, height = box(look, chart)
    frame = look.page.locator("[role=group]", has=look.page.locator(f"#chart-{chart}"))
    frame.get_by_role("button", name="Zoom").click()
    look.page.mouse.move(left + 0.4 * width, top + 0.3 * height)
    look.page.mouse.down()
    look.page.mouse.move(left + 0.6 * width, top + 0.6 * height, steps=4)
    look.page.mouse.up()
    return extent(look, chart)


def extent(look: Any, chart: str) -> list[float]:
    found: list[float] = look.page.evaluate(EXTENT, chart)
    return found


# --- zoom ----------------------------------------------------------------------------------------------


def test_zoom_leaves_no_point_out(look: Any) -> None:
    """Else a line would join points between which others lie outside the part."""
    points = f"name => ({MODEL})(name).getSeries().map((series) => series.getData().count())"
    look.see("accuracy")
    before, whole = look.page.evaluate(points, "accuracy"), extent(look, "accuracy")
    assert whole == [0, 30]
    low, high = zoom(look, "accuracy")
    assert 5 < low < high < 25
    assert look.page.evaluate(points, "accuracy") == before
    look.page.locator("#accuracy .legend button").first.click()
    assert extent(look, "accuracy") == [low, high]  # still, with a method less
    look.page.locator("#accuracy").get_by_role("button", name="Whole").click()
    assert extent(look, "accuracy") == whole
    assert zoom(look, "accuracy") == whole  # the first click on the button ended the tool


def test_another_axis_is_shown_whole(look: Any) -> None:
    zoom(look, "accuracy")
    look.page.get_by_label("images", exact=True).check()
    assert extent(look, "accuracy")[0] == 0 and extent(look, "accuracy")[1] > 1000


# --- scrolling -----------------------------------------------------------------------------------------

CHARTS = ("accuracy", "drift", "partition-1", "features-0", "per-class", "confusion")


@pytest.mark.parametrize("chart", CHARTS)
def test_the_wheel_scrolls_the_page(look: Any, chart: str) -> None:
    left, top, width, height = box(look, chart)
    look.page.mouse.move(left + width / 2, top + height / 2)
    before = look.page.evaluate("scrollY")
    look.page.mouse.wheel(0, -150)
    look.page.wait_for_function("before => scrollY === before - 150", arg=before)


def test_a_finger_scrolls_the_page(report: Path, open_in_browser: Any) -> None:
    phone = {"viewport": {"width": 400, "height": 800}, "has_touch": True, "is_mobile": True}
    with open_in_browser(report, **phone) as look:
        session = look.page.context.new_cdp_session(look.page)
        for chart in CHARTS:
            left, top, width, height = box(look, chart)
            before, x, y = look.page.evaluate("scrollY"), left + width / 2, top + height / 2
            for kind, at in (
                ("touchStart", 0),
                *(("touchMove", 15 * i) for i in range(1, 12)),
                ("touchEnd", 0),
            ):
                points = [] if kind == "touchEnd" else [{"x": x, "y": y + at}]
                session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            look.page.wait_for_function("before => scrollY < before - 100", arg=before)


# --- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", ["images", "wall time", "rounds"])
def test_every_method_has_a_value_wherever_the_mouse_is(look: Any, against: str) -> None:
    """With the round that is nearest, which differs against images."""
    look.page.get_by_label(against, exact=True).check()
    series = look.series("accuracy")
    for across in (0.3, 0.5, 0.7):
        text = hover(look, "accuracy", across)
        for label in ("fedavg + plain", "fedavg + vhl", "fedprox + vhl"):
            found = re.search(rf"{re.escape(label)}: ([\d.]+) %[^:]*?(?: in round (\d+))?(?=\s*fed|$)", text)
            assert found, text
            round_ = int(found[2] or re.match(r"Round (\d+)", text)[1])
            (value,) = (point[1] for point in series[label] if point[2] == round_)
            assert float(found[1]) == pytest.approx(value, rel=5e-3)
            if against != "rounds":
                assert found[2]


TICKS = f"""([name, which]) => ({MODEL})(name).getComponent(which).axis.getViewLabels().map(
    (tick) => tick.formattedLabel)"""


def test_ticks_are_whole_rounds_and_short_numbers(write: Write, open_in_browser: Any, tmp_path: Path) -> None:
    """An accuracy that never changes has an axis too, which ends at 100 %."""
    few = {"few": [0.899, 0.9, 0.9], "full": [1.0, 1.0], "none": [0.0, 0.0], "smoothed": [0.7] * 20}
    for name, accuracies in few.items():
        write_report([write(tmp_path / name, accuracies)], tmp_path / f"{name}.html")
        with open_in_browser(tmp_path / f"{name}.html") as look:
            look.see("accuracy")
            rounds = look.page.evaluate(TICKS, ["accuracy", "xAxis"])
            assert rounds == [str(i) for i in range(0, len(accuracies) + 1, 5 if len(accuracies) > 5 else 1)]
            shown = look.page.evaluate(TICKS, ["accuracy", "yAxis"])
            assert len(shown) > 2 and max(map(len, shown)) < 6
            assert all(0 <= float(tick) <= 100 for tick in shown)
            assert any(float(tick) < 100 * accuracies[-1] for tick in shown) or name == "none"


def test_the_shades_of_counts_have_numbers(look: Any) -> None:
    assert look.option("partition-1", "visualMap[0].text") == ["30", "0"]
    assert look.option("confusion", "visualMap[0].text") == ["9", "0"]


# --- without a mouse -----------------------------------------------------------------------------------


def test_arrow_keys_go_from_point_to_point(look: Any) -> None:
    for chart in look.charts():
        look.see(chart)
        place = look.page.locator(f"#chart-{chart}")
        place.focus()
        assert place.get_attribute("aria-label").startswith(
            ("Test", "Clients'", "Learning", "Loss", "Accuracy", "Images", "t-SNE", "Conf")
        )
        said = []
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown"):
            look.page.keyboard.press(key)
            said.append(look.texts("#spoken")[0])
            assert said[-1]
        assert said[1] != said[0] == said[2]
        if chart == "clients":
            names, shares = ("client 1", "client 0"), ("25", "62.5")
            first, second = (
                f"{name}\n■ test accuracy: {share} %" for name, share in zip(names, shares, strict=True)
            )
            assert said == [first, second, first, first]


def test_keys_move_over_a_table_of_counts(look: Any) -> None:
    look.see("partition-1")
    look.page.locator("#chart-partition-1").focus()
    for key, text in (
        ("ArrowRight", "client 0: 34 in all, 30 of cat"),
        ("ArrowDown", "client 1: 26 in all, 1 of cat"),
        ("ArrowRight", "client 1: 26 in all, 20 of dog"),
        ("ArrowUp", "client 0: 34 in all, 0 of dog"),
        ("ArrowUp", "client 0: 34 in all, 30 of cat"),
    ):
        look.page.keyboard.press(key)
        assert look.texts("#spoken") == [text]
    tip = look.page.locator("#chart-partition-1 > div").last
    assert tip.is_visible()
    look.page.keyboard.press("Tab")
    tip.wait_for(state="hidden")


def test_a_chart_is_saved_as_a_picture(look: Any) -> None:
    look.see("accuracy")
    with look.page.expect_download() as found:
        look.page.locator("#accuracy").get_by_role("button", name="Save").press("Enter")
    assert found.value.suggested_filename == "accuracy.png"
    assert Path(found.value.path()).read_bytes().startswith(b"\x89PNG")


def test_everything_to_choose_from_has_a_name(look: Any) -> None:
    names = look.page.locator("select").evaluate_all(
        "all => all.map((select) => select.ariaLabel ?? select.labels[0]?.firstChild.textContent)"
    )
    assert all(names) and len(names) == len(set(names)) == 5 and "which" not in names


# --- what is drawn when --------------------------------------------------------------------------------

DRAWN = "() => [...report.charts].filter(([, { instance }]) => instance).map(([name]) => name)"


def test_charts_are_drawn_when_they_come_near(report: Path, open_in_browser: Any) -> None:
    with open_in_browser(report, viewport={"width": 1280, "height": 700}) as look:
        look.drawn_after()
        assert "clients" not in look.page.evaluate(DRAWN)
        look.page.locator("#contents a", has_text="Classes").click()
        look.page.wait_for_function("() => report.charts.get('per-class').instance")
        look.page.pdf()
        assert look.page.evaluate(DRAWN) == look.charts() and look.said == []


def test_nothing_jumps(report: Path, open_in_browser: Any) -> None:
    """Layout shifts while everything is scrolled by."""
    watch = """window.shift = 0; new PerformanceObserver((list) => list.getEntries().forEach(
        (entry) => { window.shift += entry.value; })).observe({ type: "layout-shift", buffered: true })"""
    with open_in_browser(report, viewport={"width": 1280, "height": 700}) as look:
        look.page.evaluate(watch)
        for chart in look.charts():
            look.see(chart)
        look.drawn_after()
        assert look.page.evaluate("shift") < 0.01


# --- looks ---------------------------------------------------------------------------------------------

POINTS = """() => report.charts.get("features-0").instance.getOption().series.flatMap(({ data }) => data.map(
    ({ value, itemStyle }) => [value[2], itemStyle.borderColor ?? itemStyle.color]))"""


def test_what_the_points_of_features_mean(look: Any) -> None:
    key = look.page.locator("#features .key li").all_text_contents()
    assert [entry.split(" ", 1)[1] for entry in key[:-1]] == ["cat", "dog", "owl", "server", "client 1"]
    assert key[3][0] != key[4][0] and "virtual" in key[-1]
    for shades in (LIGHT, DARK):
        look.see("features-0")
        points = look.page.evaluate(POINTS)
        assert {tuple(point) for point in points} == {(label, shades[label]) for label in range(5)}
        marks = look.page.locator("#features .key span").evaluate_all(
            "all => all.map((mark) => getComputedStyle(mark).color)"
        )
        assert marks[0] == f"rgb({', '.join(str(part) for part in bytes.fromhex(shades[0][1:]))})"
        look.page.locator("#theme").click()


def test_letters_are_larger_on_a_projector(look: Any) -> None:
    def sizes() -> list[float]:
        look.see("accuracy")
        return [
            *look.page.evaluate(
                "['.verdict', 'th', '.hint', '.legend button'].map("
                "(name) => parseFloat(getComputedStyle(document.querySelector(name)).fontSize))"
            ),
            *(look.option("accuracy", f"{axis}Axis[0].axisLabel.fontSize") for axis in "xy"),
        ]

    usual = sizes()
    look.page.set_viewport_size({"width": 1920, "height": 1080})
    look.drawn_after()
    assert sizes() == pytest.approx([1.1875 * size for size in usual])
