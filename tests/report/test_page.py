"""The page as a person meets it, in a browser."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vhl.report.content import content
from vhl.report.figure import Curves, Figure, Heat
from vhl.report.serve import serving
from vhl.report.write import write_report
from vhl.runs.compare import compare
from vhl.runs.folder import RunFolder

Write = Callable[..., RunFolder]
SECONDS = 6
"""A page is to be drawn within two; other work may slow the machine down."""


@pytest.fixture(scope="module")
def report(compared: list[RunFolder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(compared, file)
    return file


@pytest.fixture(scope="module")
def seen(report: Path, open_in_browser: Any) -> Iterator[Any]:
    """The page, opened once; not to be changed."""
    with open_in_browser(report) as look:
        yield look


@pytest.fixture
def look(seen: Any) -> Iterator[Any]:
    """The page to work with; afterwards it is as if just opened."""
    yield seen
    seen.page.reload()


def test_the_page_opens_from_disk_and_asks_for_nothing(seen: Any, report: Path) -> None:
    assert seen.said == [] and set(seen.requested) == {report.as_uri()}
    assert seen.page.title() == seen.texts("h1")[0] == "compared0"
    assert seen.texts("#about")[0].startswith("7 runs, 3 methods, 3 seeds; vhl ")
    headings = seen.texts("section > h2")
    assert headings == seen.texts("#contents a") and len(headings) == 8


def test_every_chart_is_painted(seen: Any) -> None:
    """More than one colour on each canvas: a curve on its background."""
    for chart in seen.charts():
        seen.see(chart)
    painted = seen.page.evaluate(
        """() => [...report.charts.values()].map(({ place }) => {
            const canvas = place.querySelector("canvas");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size;
        })"""
    )
    assert len(painted) == 11 and min(painted) > 10


# --- numbers -------------------------------------------------------------------------------------------


def lines(panel: Curves, x: str = "round", window: int | None = None) -> dict[str, list[list[float]]]:
    """What the page shows of each curve: place, mean, round, and lowest and highest where there are seeds."""
    found = {}
    for own in panel.series:
        band = own.bands[window or panel.window]
        columns = [own.places[x], band.mean, own.places["round"], band.low, band.high]
        found[own.label] = np.column_stack([column for column in columns if column is not None]).tolist()
    return found


def is_curve(drawn: list[Any], expected: list[list[float]]) -> bool:
    return len(drawn) == len(expected) and all(
        [own for own in point if own is not None] == pytest.approx(other, rel=1e-4)
        for point, other in zip(drawn, expected, strict=True)
    )


@pytest.fixture(scope="module")
def figures(compared: list[RunFolder], described: Callable[..., dict[str, Figure]]) -> dict[str, Figure]:
    return described(compared)


def shows(look: Any, chart: str, panel: Curves, **how: Any) -> dict[str, list[Any]]:
    """Whether a chart draws the panel; all that it draws."""
    series: dict[str, list[Any]] = look.series(chart)
    for label, expected in lines(panel, **how).items():
        assert is_curve(series[label], expected)
        assert (f"{label}, all seeds" in series) == (len(expected[0]) > 3)
        if len(expected[0]) > 3:
            assert is_curve(
                series[f"{label}, all seeds"], [[x, low, high] for x, _, _, low, high in expected]
            )
    return series


def test_curves_are_those_described(seen: Any, figures: dict[str, Figure]) -> None:
    """The mean in bold, every round as well, a band where there are seeds."""
    (panel,) = figures["accuracy"].panels
    drawn = shows(seen, "accuracy", panel)
    assert len(drawn) == 3 + 3 + 2
    for label, every in lines(panel, window=1).items():
        assert is_curve(drawn[f"{label}, every round"], [point[:2] for point in every])
    for chart, name in (
        ("drift", "drift"),
        ("learning-rate", "learning-rate"),
        ("accuracies", "virtual-accuracy"),
    ):
        (panel,) = figures[name].panels
        assert len(shows(seen, chart, panel)) == sum(1 + (own.seeds > 1) for own in panel.series)
        assert seen.option(chart, "yAxis[0].name") == panel.y
    for chart, label, panels in (
        ("loss", "Loss while training", figures["loss"].panels),
        ("accuracies", "Accuracy", [figures[f"{name}-accuracy"].panels[0] for name in ("virtual", "train")]),
    ):
        options = seen.page.get_by_role("combobox", name=label).locator("option").all_text_contents()
        assert len(options) == len(panels)
        for number in (1, 0):
            seen.page.get_by_role("combobox", name=label).select_option(index=number)
            shows(seen, chart, panels[number])
    assert seen.page.get_by_role("combobox", name="Learning rate").count() == 0  # there is one alone


def test_theory_where_it_was_measured(write: Write, seen: Any, open_in_browser: Any, tmp_path: Path) -> None:
    assert not seen.page.locator("#theory").count()
    run = write(tmp_path / "run", [0.1, 0.2, 0.3])
    names = ("margin_natural", "margin_virtual", "normalised_distance", "merged_accuracy")
    terms = [{"round": n, **{name: n / (10 + i) for i, name in enumerate(names)}} for n in (1, 3)]
    (run.path / "theory.json").write_text(json.dumps({"terms": terms}), encoding="utf-8")
    write_report([run], tmp_path / "report.html")
    with open_in_browser(tmp_path / "report.html") as look:
        assert look.said == [] and "Theory" in look.texts("section > h2")
        for chart, scale in (("margins", 10), ("distances", 12), ("merged", 13 / 100)):
            (drawn,) = look.series(chart).values()
            assert is_curve([point[:2] for point in drawn], [[1, 1 / scale], [3, 3 / scale]])
        options = look.page.locator("#choose-margins option").all_text_contents()
        assert options == ["natural images", "virtual images, held out"]


GREY = """() => report.charts.get("clients").instance.getOption().series[0].data.map(
    ({ itemStyle }) => "color" in itemStyle)"""


def test_counts_and_bars_are_those_described(look: Any, figures: dict[str, Figure]) -> None:
    def check(**panels: Any) -> None:
        for chart, panel in panels.items():
            drawn, chart = look.series(chart.replace("_", "-")), chart.replace("_", "-")
            if isinstance(panel, Heat):
                cells = [[x, y, count] for (y, x), count in np.ndenumerate(panel.counts)]
                assert list(drawn.values()) == [cells]
                assert look.option(chart, "yAxis[0].data") == list(panel.rows)
            else:
                assert list(drawn) == [bar.label for bar in panel.bars]
                for bar in panel.bars:
                    assert drawn[bar.label] == pytest.approx(bar.values.tolist(), abs=0.006)
            names = panel.columns if isinstance(panel, Heat) else panel.names
            assert look.option(chart, "xAxis[0].data") == list(names)

    partitions = [figures[f"partition-{number}"] for number in (1, 2)]
    first, second = (own.panels[0] for own in partitions)
    check(partition_1=first, partition_2=second, per_class=figures["per-class"].panels[0])
    for number, name in enumerate(("run-4-ours-seed0", "run-5-ours-seed1")):
        look.page.locator("#choose-looked").select_option(index=number)
        confusion, clients = figures[name].panels
        check(confusion=confusion, clients=clients)
        assert look.page.evaluate(GREY) == [True, True, False]
    captions = [" ".join(text.split()) for text in look.texts("#partition figcaption")]
    assert captions == [" ".join(own.subtitle.split()) for own in partitions]


def test_points_are_those_described(look: Any, figures: dict[str, Figure]) -> None:
    select = look.page.locator("#choose-features")
    assert select.locator("option").all_text_contents() == [
        "Features after round 10",
        "Features after round 30",
    ]
    for number, name in ((1, "features-30"), (0, "features-10")):
        assert number or select.select_option(index=0)
        (panel,) = figures[name].panels
        drawn = look.series("features-0")
        for cloud in panel.clouds:
            points = np.column_stack([cloud.x, cloud.y, cloud.classes]).tolist()
            assert drawn.pop(f"{cloud.model}, {'virtual' if cloud.virtual else 'test'}") == points
        assert drawn == {}
    for off, left in (
        ("server", {"client1, test", "client1, virtual"}),
        ("clients", {"server, test", "server, virtual"}),
        ("virtual images", {"server, test", "client1, test"}),
    ):
        box = look.page.locator("#features").get_by_label(off, exact=True)
        box.uncheck()
        assert set(look.series("features-0")) == left
        box.check()
        assert len(look.series("features-0")) == 4


def test_clients_that_were_left_out_are_counted(
    compared: list[RunFolder], seen: Any, tmp_path: Path, open_in_browser: Any
) -> None:
    """A client that did not answer in the second round, and two in the third."""
    run = RunFolder(shutil.copytree(compared[0].path, tmp_path / "run"))
    lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record, count in zip(records[1:3], (1, 2), strict=True):
        record["left_out"] = record["clients"][:count]
    records[1]["tested"] = 4
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run.path / "metrics.jsonl").write_text(text, encoding="utf-8")
    write_report([run], tmp_path / "report.html")
    with open_in_browser(tmp_path / "report.html") as look:
        of = sum(len(record["clients"]) for record in records)
        assert f"3 of {of} models of clients left out of averages" in look.texts(".card")[0]
        assert "images of sites that did not answer: 1" in look.texts(".card")[0]
    assert not any("left out" in card for card in seen.texts(".card"))


def test_cards_and_table_show_the_comparison(seen: Any, compared: list[RunFolder]) -> None:
    comparison = compare(compared)
    shown = [re.sub(r"\s+", " ", text) for text in seen.texts(".card")]
    assert seen.texts(".verdict") == content(compared)["verdicts"] and len(seen.texts(".verdict")) == 2
    for card, cells, row in zip(shown, seen.rows("#comparison"), comparison.rows, strict=True):
        mean = {
            name: row.over_seeds(name) for name in ("best", "final", "rounds", "drift", "compute", "samples")
        }
        best, final = (
            f"{100 * mean[m].mean:.1f}" + (f" ± {100 * mean[m].std:.1f}" if row.seeds > 1 else "")
            for m in ("best", "final")
        )
        assert card.startswith(f"{row.label}{final} %") and f"best {best} %" in card
        assert cells[0] == row.label and cells[1:3] == [best, final]
        speed_up = comparison.speed_up(row)
        reached = f"{mean['rounds'].mean:.0f}"
        if mean["rounds"].count < row.seeds:
            reached += f" ({mean['rounds'].count} of {row.seeds})"
        assert cells[4:6] == [reached, "–" if speed_up is None else f"×{speed_up:.1f}"]
        time = comparison.time(row)
        cost = [f"×{mean['compute'].mean:.2f}", "–" if time is None else f"×{time:.2f}"]
        assert cells[8:] == [f"{mean['drift'].mean:.2f}", *cost, str(row.seeds)]
        samples = mean["samples"].mean
        assert cells[6] == (f"{samples / 1000:.3g} k" if samples > 999 else f"{samples:.3g}")
    gain = content(compared)["groups"][1]["gain"]
    assert [cells[3] for cells in seen.rows("#comparison")] == ["–", f"+{100 * gain['mean']:.1f}", "–"]
    assert f"+{100 * gain['mean']:.1f} points over plain training ± {100 * gain['margin']:.1f}" in shown[1]


@pytest.mark.parametrize("runs", [1, 21])
def test_how_many_rounds_count_as_the_last(
    write: Write, tmp_path: Path, open_in_browser: Any, runs: int
) -> None:
    """Two of four, on a page and in an index: 50 % is the mean of the two."""
    made = [write(tmp_path / f"run{n}", [0.1, 0.2, 0.4, 0.6], name=f"run{n}") for n in range(runs)]
    write_report(made, tmp_path / "page.html", last=0.5)
    table = "#comparison" if runs == 1 else "#runs"
    with open_in_browser(tmp_path / "page.html") as look:
        assert look.texts(f"{table} th")[2] == "last 50 %, %"
        assert look.rows(table)[0][1:3] == ["60.0", "50.0"]
        if runs == 1:
            assert "50.0 %last 50 % of the rounds; best 60.0 %" in look.texts(".card")[0]


def test_what_was_run(seen: Any, compared: list[RunFolder]) -> None:
    shown = content(compared)["runs"]
    assert seen.texts("#experiments summary") == [run["name"] for run in shown]
    assert seen.texts("#experiments pre.fold") == [run["command"] for run in shown]
    assert seen.texts("#experiments pre:not(.fold)") == [run["toml"] for run in shown]
    facts = dict(zip(seen.texts("#experiments dt"), seen.texts("#experiments dd"), strict=True))
    assert facts["rounds"] == "30 of 30" and facts["GPU"] == "none" and facts["torch"] == "2.99"


# --- what a person can do ------------------------------------------------------------------------------

LABELS = ["fedavg + plain", "fedavg + vhl", "fedprox + vhl"]


def shown_groups(look: Any, chart: str) -> set[int]:
    return {LABELS.index(name) for name in look.series(chart) if name in LABELS}


STATES = "all => all.map((button) => button.getAttribute('aria-pressed'))"


def tab_to(look: Any, button: Any) -> None:
    """Through everything that lies before it, as without a mouse."""
    for _ in range(60):
        look.page.keyboard.press("Tab")
        if button.evaluate("button => button === document.activeElement"):
            return
    raise AssertionError("Tab never gets there")


def test_a_method_is_hidden_everywhere(look: Any) -> None:
    """By mouse and by keyboard, in whichever section."""
    buttons = look.page.locator('.legend [data-group="1"]')
    assert buttons.all_text_contents() == ["fedavg + vhl"] * 3
    assert buttons.evaluate_all(STATES) == ["true"] * 3
    tab_to(look, buttons.first)
    assert buttons.first.evaluate("button => getComputedStyle(button).outlineStyle") == "solid"
    look.page.keyboard.press("Enter")
    assert buttons.evaluate_all(STATES) == ["false"] * 3
    for chart in ("accuracy", "drift", "loss", "accuracies", "per-class"):
        assert shown_groups(look, chart) == ({2} if chart == "accuracies" else {0, 2})
        assert not [name for name in look.series(chart) if name.startswith("fedavg + vhl")]
    buttons.last.click()
    assert buttons.evaluate_all(STATES) == ["true"] * 3
    assert shown_groups(look, "accuracy") == {0, 1, 2} and len(look.series("per-class")) == 3


def test_what_the_accuracy_is_drawn_against_and_averaged_over(look: Any, figures: dict[str, Figure]) -> None:
    (panel,) = figures["accuracy"].panels
    for label, x in (("images", "samples"), ("wall time", "seconds"), ("rounds", "round")):
        look.page.get_by_label(label, exact=True).check()
        shows(look, "accuracy", panel, x=x)
        assert look.option("accuracy", "xAxis[0].name") == panel.axes[x]
    select = look.page.locator("#accuracy select")
    assert select.locator("option:checked").text_content() == "3 rounds"
    for label, window in (("no rounds", 1), ("5 rounds", 5), ("11 rounds", 11)):
        select.select_option(label=label)
        drawn = shows(look, "accuracy", panel, window=window)
        assert ("fedavg + plain, every round" in drawn) == (window > 1)  # it would be the same
    look.page.get_by_label("every round").uncheck()
    assert [name for name in look.series("accuracy") if "every round" in name] == []


def test_the_table_sorts(look: Any, compared: list[RunFolder]) -> None:
    def head(text: str) -> Any:
        return look.page.locator("#comparison th", has_text=text)

    def order() -> list[int]:
        return [labels.index(cells[0]) for cells in look.rows("#comparison")]

    rows = compare(compared).rows
    labels = [row.label for row in rows]
    best = [row.over_seeds("best").mean for row in rows]
    rising = sorted(range(3), key=best.__getitem__)
    assert order() == [0, 1, 2] and head("best, %").get_attribute("aria-sort") == "none"
    for expected, state in ((rising[::-1], "descending"), (rising, "ascending")):
        head("best, %").get_by_role("button").click()
        assert order() == expected and head("best, %").get_attribute("aria-sort") == state
    head("method").get_by_role("button").click()
    assert order() == [2, 1, 0] and head("method").get_attribute("aria-sort") == "descending"
    assert head("best, %").get_attribute("aria-sort") == "none"
    head("gain, points").get_by_role("button").press("Enter")
    assert order()[0] == 1  # what has no gain comes last


def test_the_text_to_copy(seen: Any, compared: list[RunFolder]) -> None:
    seen.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    seen.page.locator("#experiments summary").nth(3).click()
    command, toml = seen.page.locator("#experiments details").nth(3).get_by_role("button").all()
    toml.click()
    assert seen.page.evaluate("copied") == compared[3].experiment().toml()
    command.click()
    assert seen.page.evaluate("copied") == content(compared)["runs"][3]["command"]
    assert command.text_content() == "Copied"


# --- light and dark ------------------------------------------------------------------------------------


def brightness(look: Any) -> tuple[bool, bool]:
    """Whether the page and the words in its charts are bright."""
    page = look.page.evaluate("getComputedStyle(document.body).backgroundColor")
    words = look.option("accuracy", "textStyle.color")
    return (
        statistics.mean(map(int, re.findall(r"\d+", page)[:3])) > 128,
        statistics.mean(bytes.fromhex(words.removeprefix("#"))) > 128,
    )


LIGHT, DARK = (True, False), (False, True)


def test_the_theme_is_the_systems_unless_one_is_chosen(report: Path, open_in_browser: Any) -> None:
    with open_in_browser(report, color_scheme="dark") as look:
        assert brightness(look) == DARK
        look.page.emulate_media(color_scheme="light")
        look.page.reload()
        assert brightness(look) == LIGHT
        look.page.locator("#theme").click()
        assert brightness(look) == DARK
        look.page.reload()
        assert brightness(look) == DARK
        look.page.locator("#theme").click()
        assert brightness(look) == LIGHT


# --- space ---------------------------------------------------------------------------------------------

_COLLISIONS = """() => {
    const found = [], box = (element) => element.getBoundingClientRect();
    const name = (element) => `${element.tagName}.${element.className} ${element.textContent.slice(0, 40)}`;
    const shown = (element) => box(element).width && box(element).height
        && !["absolute", "fixed"].includes(getComputedStyle(element).position);
    const check = (parent) => {
        const children = [...parent.children].filter(shown);
        const scrolls = getComputedStyle(parent).overflowX !== "visible";
        children.forEach((child, i) => {
            const a = box(child);
            for (const other of children.slice(i + 1)) {
                const b = box(other);
                const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (across > 1 && down > 1) found.push(`${name(child)} overlaps ${name(other)}`);
            }
            const outside = a.right > box(parent).right + 1 || a.left < box(parent).left - 1;
            if (outside && !scrolls) found.push(`${name(child)} leaves ${name(parent)}`);
            if (!child.matches(".chart, pre, select, table")) check(child);
        });
    };
    document.querySelectorAll("details").forEach((element) => { element.open = true; });
    check(document.querySelector("header"));
    document.querySelectorAll("section").forEach((section) => check(section));
    return found;
}"""
"""Siblings that lie on one another and children that stick out, in every section; tables and charts have an
inside of their own."""


def fits(look: Any, width: int) -> None:
    """Nothing to scroll sideways, and nothing on top of anything else."""
    look.page.set_viewport_size({"width": width, "height": 900})
    for chart in look.charts():
        look.see(chart)
    look.drawn_after()
    wide = look.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1] == width
    assert look.page.evaluate(_COLLISIONS) == []
    canvases = look.page.evaluate(
        "[...report.charts.values()].map(({ place, instance }) => [place.clientWidth, instance.getWidth()])"
    )
    assert all(place == chart > 0 for place, chart in canvases)


def test_everything_fits(look: Any) -> None:
    for width in (320, 400, 1920, 1280):
        fits(look, width)


# --- hostile names -------------------------------------------------------------------------------------

HOSTILE = [
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 1'>",
    "\"double\" 'single' `back` &amp; &lt;b&gt;",
    "{{data}} {{js}} ${window.ran = 1} {a|b} {b0}",
    "back\\slash\\n \\u003cb\\u003e",
    "a: b: c",
    "🦊 emoji",
    "מימין לשמאל \u202e gnorts",
    "long " + "x" * 195,
]


@pytest.fixture(scope="module")
def hostile_runs(write: Write, record: Any, tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Hostile classes, sites, terms of the loss, settings, machines and names."""
    root = tmp_path_factory.mktemp("hostile")
    count = len(HOSTILE)
    problem = {
        "classes": HOSTILE,
        "sites": HOSTILE[::-1],
        "counts": [[x + count * y for x in range(count)] for y in range(count)],
    }
    runs = []
    for number, word in enumerate(HOSTILE):
        rounds = [
            record(i, 0.1 * i, loss=dict.fromkeys(HOSTILE, 1.0), per_class=[0.5] * count) for i in (1, 2)
        ]
        folder = root / f"{number} {word.replace('/', '∕')}"
        runs.append(write(folder, rounds, problem, {"processor": word}, data=f"folder:{word}"))
    runs[0].save_last(
        {
            "confusion": torch.ones(count, count, dtype=torch.int64),
            "clients": torch.arange(count),
            "client_accuracy": torch.full((count,), 0.5),
        }
    )
    labels = torch.arange(count)
    features = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    runs[0].save_features(1, {"server.test.features": features, "server.test.labels": labels})
    return runs


@pytest.fixture(scope="module")
def hostile(
    hostile_runs: list[RunFolder], tmp_path_factory: pytest.TempPathFactory, open_in_browser: Any
) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(hostile_runs, file, title="".join(HOSTILE))
    with open_in_browser(file) as look:
        yield look


def harmless(look: Any) -> None:
    assert look.said == [] and look.page.evaluate("window.ran") is None
    assert look.page.locator("main script, main iframe, body > b, h1 *").count() == 0
    assert look.page.locator("img:not([src^='data:'])").count() == 0


def test_hostile_names_are_text(hostile: Any, hostile_runs: list[RunFolder]) -> None:
    labels = [row.label for row in compare(hostile_runs).rows]
    assert all(word in label for word, label in zip(HOSTILE, labels, strict=True))
    assert hostile.texts("h1") == ["".join(HOSTILE)] and hostile.page.title() == "".join(HOSTILE)
    for legend in ("#accuracy", "#training", "#classes"):
        assert hostile.texts(f"{legend} .legend button") == labels
    assert hostile.texts(".card .label") == labels
    assert [cells[0] for cells in hostile.rows("#comparison")] == labels
    assert hostile.texts("#choose-loss option") == HOSTILE
    assert hostile.texts("#experiments summary") == [run.path.name for run in hostile_runs]
    assert hostile.texts("#experiments pre:not(.fold)") == [run.experiment().toml() for run in hostile_runs]
    processors = hostile.page.locator("#experiments dt:text-is('processor') + dd").all_text_contents()
    assert processors == HOSTILE
    assert hostile.option("per-class", "xAxis[0].data") == HOSTILE
    assert list(hostile.series("per-class")) == labels
    assert [name.rpartition(": ")[0] for name in hostile.option("partition-1", "yAxis[0].data")] == HOSTILE[
        ::-1
    ]
    assert hostile.option("clients", "xAxis[0].data") == [*HOSTILE[::-1], "server"]
    harmless(hostile)


_TIP = """([name, series, item]) => {
    const { instance, place } = report.charts.get(name);
    instance.dispatchAction({ type: "showTip", seriesIndex: series, dataIndex: item });
    const tip = [...place.children].filter((child) => !child.querySelector("canvas")).at(-1);
    const tags = [...new Set([...tip.querySelectorAll("*")].map((element) => element.tagName))];
    return [tip.textContent, tags.filter((tag) => !["B", "DIV", "SPAN", "svg", "line"].includes(tag))];
}"""


def tip(look: Any, chart: str, series: int, item: int) -> str:
    """What stands beside the mouse at a point."""
    look.see(chart)
    text, tags = look.page.evaluate(_TIP, [chart, series, item])
    assert tags == []
    return str(text)


def test_hostile_names_beside_the_mouse(hostile: Any, hostile_runs: list[RunFolder]) -> None:
    labels = [row.label for row in compare(hostile_runs).rows]
    for chart in ("accuracy", "drift", "loss"):
        text = tip(hostile, chart, 0, 1)
        assert text.startswith("Round 2") and all(label in text for label in labels)
    for number, word in enumerate(HOSTILE):
        assert tip(hostile, "per-class", 0, number).startswith(word)
        site = HOSTILE[::-1][number]
        assert tip(hostile, "clients", 0, number) == f"{site}■ test accuracy: 50 %"
        cell = number * len(HOSTILE)  # the first class at this site
        assert (
            tip(hostile, "partition-1", 0, cell)
            == f"{site}: {sum(range(cell, cell + len(HOSTILE)))} in all, {cell} of {HOSTILE[0]}"
        )
        assert tip(hostile, "confusion", 0, number) == f"{HOSTILE[0]} taken for {word}: 1"
    tips = {tip(hostile, "features-0", 0, number) for number in range(len(HOSTILE))}
    assert tips == {f"{word}: server, test" for word in HOSTILE}
    harmless(hostile)


def test_hostile_names_fit(hostile: Any) -> None:
    """Those beside the mouse too, which lie over the rest."""
    for width in (400, 1920):
        fits(hostile, width)
        for chart, item in (("accuracy", 1), ("clients", 0), ("partition-1", 9)):
            tip(hostile, chart, 0, item)
        fits(hostile, width)


def test_hostile_names_in_an_index(
    hostile_runs: list[RunFolder], write: Write, open_in_browser: Any, tmp_path: Path
) -> None:
    more = [write(tmp_path / f"more{i}", [0.0], training={"lr": 0.01 * i}) for i in range(1, 12)]
    write_report([*hostile_runs, *more], tmp_path / "report.html")
    with open_in_browser(tmp_path / "report.html") as look:
        assert [cells[0] for cells in look.rows("#runs")][:10] == [run.path.name for run in hostile_runs]
        look.page.get_by_role("searchbox").fill(HOSTILE[2])
        assert len(look.rows("#runs")) == 1
        names = list(look.series("index"))
        text = tip(look, "index", 0, 1)
        assert names and all(name in text for name in names)
        harmless(look)
        fits(look, 400)


# --- many runs, many rounds ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(write: Write, record: Any, tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Eighty runs of forty rounds."""
    root = tmp_path_factory.mktemp("many")
    choices = itertools.product(("digits", "svhn"), ("lda", "iid"), ("fedavg", "fedprox"), ("plain", "vhl"))
    runs = []
    for (data, partition, algorithm, objective), seed in itertools.product(choices, range(5)):
        number = len(runs)
        best = (number * 37 % 80) / 80  # all different
        rounds = [record(i, best * i / 40) for i in range(1, 41)]
        named = {"data": data, "partition": partition, "algorithm": algorithm, "objective": objective}
        lr = {"lr": round(0.001 * (number % 25 + 1), 3)}
        runs.append(write(root / f"run{number:03}", rounds, training=lr, seeds={"batches": seed}, **named))
    return runs


@pytest.fixture(scope="module")
def index(
    many: list[RunFolder], tmp_path_factory: pytest.TempPathFactory, open_in_browser: Any
) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(many, file)
    assert len(many) == 80 and file.stat().st_size < 8e6
    with open_in_browser(file) as look:
        assert look.drawn_after() < SECONDS
        yield look


@pytest.fixture
def look_at_index(index: Any) -> Iterator[Any]:
    """The index to work with; afterwards it is as if just opened."""
    yield index
    index.page.reload()


def names(look: Any) -> list[str]:
    return [cells[0] for cells in look.rows("#runs")]


def test_an_index_shows_the_best_five(index: Any, many: list[RunFolder]) -> None:
    assert names(index) == [run.path.name for run in many]
    best = {run.path.name: max(r.accuracy for r in run.records()) for run in many}
    assert list(index.series("index")) == sorted(best, key=best.__getitem__, reverse=True)[:5]
    drawn = index.series("index")["run067"]  # 67 × 37 = 31 × 80 - 1: the best
    records = many[67].records()
    assert is_curve(drawn, [[r.round, 100 * r.accuracy, r.round] for r in records])
    row = index.rows("#runs")[67]
    final = statistics.mean(r.accuracy for r in records[-4:])
    label = compare(many).rows[0].label
    assert row[1:3] == [f"{100 * best['run067']:.1f}", f"{100 * final:.1f}"] and row[-1] == "40"
    assert index.rows("#runs")[0][4] == label
    assert index.said == []


def test_an_index_fits(index: Any) -> None:
    for width in (400, 1920, 1280):
        fits(index, width)


def test_runs_are_filtered_by_words_and_choices(look_at_index: Any, many: list[RunFolder]) -> None:
    def expected(test: Callable[[Any], bool]) -> list[str]:
        return [run.path.name for run in many if test(run.experiment())]

    def choice(label: str) -> Any:
        return look.page.locator("label", has_text=re.compile(f"^{label}")).locator("select")

    look = look_at_index
    search = look.page.get_by_role("searchbox")
    search.fill("training.lr=0.007 SVHN")
    found = expected(lambda e: e.training.lr == 0.007 and e.data.name == "svhn")
    assert names(look) == found and 0 < len(found) < 10
    assert look.texts("#index [role=status]") == [f"{len(found)} of 80 runs"]
    search.fill("")
    choice("objective").select_option(label="plain")
    choice("partition").select_option(label="iid")
    found = expected(lambda e: e.objective.name == "plain" and e.partition.name == "iid")
    assert names(look) == found and len(found) == 20
    search.fill("run07")
    assert names(look) == [name for name in found if "run07" in name]
    search.fill("")
    choice("objective").select_option(label="all")
    assert names(look) == expected(lambda e: e.partition.name == "iid")
    search.fill("no such run")
    assert names(look) == [] and look.texts("#index [role=status]") == ["0 of 80 runs"]
    assert not choice("virtual").is_visible()  # all have the same
    assert look.said == []


def test_an_index_sorts_and_stays_sorted(look_at_index: Any, many: list[RunFolder]) -> None:
    look = look_at_index
    best = [run.path.name for run in sorted(many, key=lambda run: -run.records()[-1].accuracy)]
    head = look.page.locator("#runs th").filter(has_text="best")
    head.get_by_role("button").click()
    assert names(look) == best and head.get_attribute("aria-sort") == "descending"
    look.page.get_by_role("searchbox").fill("fedprox")
    kept = {run.path.name for run in many if run.experiment().algorithm.name == "fedprox"}
    assert names(look) == [name for name in best if name in kept]
    look.page.get_by_role("searchbox").fill("")
    head.get_by_role("button").click()
    assert names(look) == best[::-1] and head.get_attribute("aria-sort") == "ascending"


SWATCHES = """() => Object.fromEntries([...document.querySelectorAll("#runs .swatch")].map((svg) => [
    svg.closest("tr").cells[0].textContent, getComputedStyle(svg).stroke]))"""


def shades(look: Any) -> dict[str, str]:
    """The colour of each curve of an index."""
    series = (
        "() => report.charts.get('index').instance.getOption().series.map(({ name, color }) => [name, color])"
    )
    look.see("index")
    return {
        name: f"rgb({', '.join(str(part) for part in bytes.fromhex(shade[1:]))})"
        for name, shade in look.page.evaluate(series)
    }


def test_a_setting_is_searched_for_to_the_letter(write: Write, open_in_browser: Any, tmp_path: Path) -> None:
    runs = [
        write(tmp_path / f"run{i}", [0.5], rounds=30 if i % 2 else 300, name=f"x{i}=1") for i in range(22)
    ]
    write_report(runs, tmp_path / "report.html")
    with open_in_browser(tmp_path / "report.html", viewport={"width": 400, "height": 800}) as look:
        search = look.page.get_by_role("searchbox")
        for words, found in (
            ("rounds=30", 11),
            ("rounds=300", 11),
            ("rounds=3", 0),
            ("name=x1=1", 1),
            ("", 22),
        ):
            search.fill(words)
            assert len(names(look)) == found, words
        search.fill("lr=0.01 rounds=30 run1")
        assert names(look) == [f"run{i}" for i in (1, 11, 13, 15, 17, 19)]
        cells = look.page.locator("#runs tbody tr").first.locator("td")
        for number, text in ((1, "50.0"), (2, "50.0")):  # seen without scrolling
            assert cells.nth(number).text_content() == text
            edge = cells.nth(number).bounding_box()
            assert edge["x"] + edge["width"] <= 400


def test_ticked_runs_are_drawn(look_at_index: Any) -> None:
    look = look_at_index
    before = list(look.series("index"))
    look.page.get_by_label("show run003", exact=True).check()
    assert list(look.series("index")) == [*before, "run003"]
    colours = shades(look)
    assert len(colours) == 6 and look.page.evaluate(SWATCHES) == colours
    assert [text.strip() for text in look.texts("#ticked li")] == list(colours)
    assert look.page.evaluate("document.activeElement.ariaLabel") == "show run003"
    look.page.get_by_label(f"show {before[0]}", exact=True).uncheck()
    assert list(look.series("index")) == [*before[1:], "run003"]
    del colours[before[0]]
    assert shades(look) == look.page.evaluate(SWATCHES) == colours  # those of the others stay
    look.page.get_by_role("searchbox").fill("run003")
    assert look.page.get_by_label("show run003", exact=True).is_checked()


def test_ten_runs_of_a_thousand_rounds(
    write: Write, record: Any, open_in_browser: Any, tmp_path: Path
) -> None:
    rounds = [record(i, 0.9 - 1 / (i + 1), virtual_accuracy=1 / i) for i in range(1, 1001)]
    runs = [write(tmp_path / f"run{i}", rounds, training={"lr": 0.01 * i}) for i in range(1, 11)]
    file = tmp_path / "report.html"
    write_report(runs, file)
    assert file.stat().st_size < 8e6
    with open_in_browser(file) as look:
        assert look.drawn_after() < SECONDS and look.said == []
        assert len(look.series("accuracy")) == 20 and {*map(len, look.series("accuracy").values())} == {1000}


def test_very_many_classes(write: Write, open_in_browser: Any, tmp_path: Path) -> None:
    """So many cells that a function cannot take each as an argument."""
    count = 400
    run = write(
        tmp_path / "run",
        [0.5],
        {"classes": [f"class {i}" for i in range(count)], "counts": [[1] * count] * 300},
    )
    run.save_last(
        {
            "confusion": torch.eye(count, dtype=torch.int64),
            "clients": torch.tensor([0]),
            "client_accuracy": torch.tensor([0.5]),
        }
    )
    write_report([run], tmp_path / "report.html")
    with open_in_browser(tmp_path / "report.html") as look:
        assert look.said == []
        assert look.option("confusion", "series[0].data.length") == count**2
        assert look.option("partition-1", "series[0].data.length") == 200 * count
        assert "300 clients (shown: the first 200)" in look.texts("#partition figcaption")[0]


@pytest.fixture(scope="module")
def single(write: Write, tmp_path_factory: pytest.TempPathFactory, open_in_browser: Any) -> Iterator[Any]:
    """One round of one run, with a target of its own and with natural images."""
    folder = tmp_path_factory.mktemp("single")
    run = write(folder / "run", [0.5], objective="plain")
    write_report([run], folder / "report.html", target=0.455, natural_from=folder)
    with open_in_browser(folder / "report.html") as look:
        yield look


def test_one_round_of_one_run(single: Any) -> None:
    """Without classes' accuracies, virtual data or a look at the last round."""
    assert single.said == [] and single.texts("#about")[0].startswith("1 run, 1 method, 1 seed; ")
    assert [point[:3] for point in single.series("accuracy")["fedavg + plain"]] == [[1, 50, 1]]
    assert single.texts(".verdict") == []
    assert "beside the same with objective=plain" in single.texts("#summary .hint")[0]


def test_a_target_of_ones_own(single: Any) -> None:
    assert "rounds to 45.5 %" in single.texts("#comparison th")
    assert "what the first method reached" not in single.texts("#summary .hint")[-1]


def test_what_the_target_costs_is_not_told_of_the_lucky_seeds_alone(
    write: Write, open_in_browser: Any, tmp_path: Path
) -> None:
    seeds = [{"batches": seed, "model": seed} for seed in range(2)]
    runs = [write(tmp_path / f"plain{i}", [0.5], objective="plain", seeds=own) for i, own in enumerate(seeds)]
    runs += [write(tmp_path / f"vhl{i}", [(0.6, 0.1)[i]], seeds=own) for i, own in enumerate(seeds)]
    write_report(runs, tmp_path / "report.html")
    with open_in_browser(tmp_path / "report.html") as look:
        plain, vhl = (look.texts(f"#comparison tbody tr:nth-child({row}) td") for row in (1, 2))
    assert plain[4:8] == ["1", "×1.0", "10", "100B"]
    assert vhl[4:8] == ["1 (1 of 2)", "–", "–", "–"]


# --- pictures ------------------------------------------------------------------------------------------


def test_pictures_of_virtual_images(seen: Any) -> None:
    """Two of the three are the same; no natural image unless asked for."""
    images = seen.page.locator("#pictures img")
    assert images.evaluate_all("all => all.map((image) => [image.naturalWidth, image.naturalHeight])") == [
        [20, 10],
        [20, 10],
    ]
    assert seen.texts("#pictures figcaption") == ["Virtual images (noise), one row a class"] * 2


def test_natural_images_where_asked_for(single: Any) -> None:
    assert single.texts("#pictures figcaption") == [
        "Natural training images (digits, lda, alpha 0.1), one row a class"
    ]
    assert single.page.locator("img").evaluate("image => image.naturalWidth") > 100


# --- while runs go on ----------------------------------------------------------------------------------


@pytest.fixture
def going_on(write: Write, record: Any, tmp_path: Path) -> list[RunFolder]:
    first = [record(1, 0.25, per_class=[0.1, 0.2, 0.3])]
    return [
        write(tmp_path / "plain", first, objective="plain", rounds=4),
        write(tmp_path / "ours", first, objective="vhl", rounds=4),
    ]


def accuracies(look: Any, group: int) -> list[float]:
    """Of the method that began as this number; its name may be longer by now."""
    return [point[1] for point in look.series("accuracy").get(LABELS[group], [])]


def test_a_page_opened_before_the_first_round(
    write: Write, record: Any, open_in_browser: Any, tmp_path: Path
) -> None:
    """It comes by itself, and so does every later round, in seconds; what was hidden stays hidden."""
    runs = [write(tmp_path / name, [], objective=name) for name in ("plain", "vhl")]
    with serving(lambda: content(runs)) as server, open_in_browser(server.url) as look:
        assert "evaluated round yet" in look.texts("body")[0]
        for run in runs:
            run.append(record(1, 0.25))
        look.page.wait_for_selector("#accuracy canvas")
        look.said.clear()  # that there was no page yet
        look.page.locator("#accuracy .legend button").first.click()
        assert accuracies(look, 1) == [25]
        for run in runs:
            run.append(record(2, 0.5))
        look.page.wait_for_function(
            "() => report.charts.get('accuracy').instance.getOption().series[0].data.length === 2"
        )
        assert accuracies(look, 1) == [25, 50] and accuracies(look, 0) == []
        assert look.page.locator("#accuracy .legend button").first.get_attribute("aria-pressed") == "false"
        assert look.said == []
        assert set(look.requested) == {server.url, f"{server.url}data.json"}


def renew(look: Any, address: str) -> None:
    """Three seconds later."""
    with look.page.expect_response(f"{address}data.json"):
        look.page.clock.run_for(3000)
    look.page.evaluate("fetch('data.json').then((answer) => answer.text())")  # after the page's own


def test_everything_on_a_live_page_is_renewed(
    going_on: list[RunFolder], write: Write, record: Any, open_in_browser: Any, tmp_path: Path
) -> None:
    with serving(lambda: content(going_on)) as server, open_in_browser(server.url, clock=True) as look:
        look.page.locator("#comparison th button").nth(0).click()  # by name, falling
        for number, run in enumerate(going_on):
            run.append(record(2, 0.5 + 0.25 * number, per_class=[0.4, 0.5, 0.6]))
        renew(look, server.url)
        table = [["fedavg + vhl", "75.0"], ["fedavg + plain", "50.0"]]
        assert [cells[:2] for cells in look.rows("#comparison")] == table
        assert accuracies(look, 1) == [25, 75]
        assert look.series("per-class")["fedavg + vhl"] == [40, 50, 60]
        assert "2 of 4" in look.texts("#experiments dd")
        # a method that begins later
        look.page.locator("#accuracy .legend button").first.click()
        going_on.append(write(tmp_path / "third", [0.5], algorithm="fedprox", rounds=4))
        renew(look, server.url)
        assert look.texts("#accuracy .legend button") == ["fedavg + plain", "fedavg + vhl", "fedprox + vhl"]
        assert shown_groups(look, "accuracy") == {1, 2} and look.said == []
        assert look.texts("#about")[0].startswith("3 runs, 3 methods")


def test_what_a_reader_of_a_live_page_has_done_stays(
    write: Write, record: Any, open_in_browser: Any, tmp_path: Path
) -> None:
    """While there are new rounds, and when there is a new run."""
    runs = [write(tmp_path / "one", [0.1 * i for i in range(1, 8)], rounds=60)]
    part = (
        "() => report.charts.get('accuracy').instance.getModel().getComponent('xAxis').axis.scale.getExtent()"
    )
    focused = "() => document.activeElement.textContent"
    with serving(lambda: content(runs)) as server, open_in_browser(server.url, clock=True) as look:
        look.page.locator("#experiments summary").click()
        look.page.locator("#choose-window").select_option(label="3 rounds")
        look.see("accuracy")
        look.page.evaluate(
            """report.charts.get("accuracy").instance.dispatchAction({ type: "dataZoom", batch: [
                { dataZoomId: "\0_ec_\0toolbox-dataZoom_xAxis0", startValue: 2, endValue: 4 }] })"""
        )
        assert look.page.evaluate(part) == [2, 4]
        look.page.get_by_label("every round").uncheck()
        look.page.locator("#comparison th button").nth(1).focus()
        look.page.evaluate("getSelection().selectAllChildren(document.querySelector('.verdict, .card'))")
        marked = look.page.evaluate("String(getSelection())")
        renew(look, server.url)  # with what was there
        assert look.page.evaluate("String(getSelection())") == marked != ""
        height = look.page.evaluate("scrollY")
        for begins in (False, True):
            if begins:
                runs.append(write(tmp_path / "two", [0.2], objective="plain", rounds=60))
            else:
                for round_ in range(8, 60):
                    runs[0].append(record(round_, 0.7))
            renew(look, server.url)
            assert look.page.locator("#experiments details").first.get_attribute("open") is not None
            assert look.page.evaluate(focused) == "best, %"
            assert look.page.locator("#choose-window").input_value() == "3"
            assert not look.page.get_by_label("every round").is_checked()
            assert look.page.evaluate(part) == [2, 4] and look.page.evaluate("scrollY") == height
        assert look.texts("#accuracy .legend button") == ["fedavg + vhl", "fedavg + plain"]
        windows = look.texts("#choose-window option")
        assert windows == ["no rounds", "3 rounds", "5 rounds", "11 rounds", "25 rounds"]
        assert look.said == []


def test_the_window_grows_with_the_run(going_on: list[RunFolder], record: Any, open_in_browser: Any) -> None:
    with serving(lambda: content(going_on)) as server, open_in_browser(server.url, clock=True) as look:
        chosen = look.page.locator("#choose-window option:checked")
        assert chosen.text_content() == "no rounds"
        for round_ in range(2, 101):
            going_on[0].append(record(round_, round_ / 200))
        renew(look, server.url)
        assert chosen.text_content() == "5 rounds"
        assert accuracies(look, 0)[-1] == pytest.approx(49.5)  # mean of 49, 49.5 and 50


def test_a_slow_answer_is_waited_for(going_on: list[RunFolder], open_in_browser: Any) -> None:
    asked, go_on = [], threading.Event()

    def slow() -> dict[str, Any]:
        asked.append(1)
        if len(asked) > 1:
            go_on.wait(20)
        return content(going_on)

    with serving(slow) as server, open_in_browser(server.url, clock=True) as look:
        look.page.clock.run_for(30_000)
        look.drawn_after()
        sent = [address for address in look.requested if address.endswith("data.json")]
        go_on.set()
        assert len(sent) == 1


def test_the_run_is_over(going_on: list[RunFolder], open_in_browser: Any) -> None:
    with serving(lambda: content(going_on)) as server:
        port, address = server.server_port, server.url
        with open_in_browser(address, clock=True) as look:
            about = look.texts("#about")
            server.shutdown()
            server.server_close()
            look.page.clock.run_for(3000)
            look.page.wait_for_selector("#about.stale")
            assert "no longer served" in look.texts("#about")[0] and accuracies(look, 1) == [25]
            with serving(lambda: content(going_on), port=port):
                renew(look, address)
                assert look.texts("#about") == about and look.page.locator(".stale").count() == 0


def test_a_live_index(write: Write, record: Any, open_in_browser: Any, tmp_path: Path) -> None:
    runs = [write(tmp_path / f"run{i:02}", [0.01 * i], training={"lr": 0.01 * i}) for i in range(1, 22)]
    with serving(lambda: content(runs)) as server, open_in_browser(server.url, clock=True) as look:
        runs[0].append(record(2, 0.99))
        renew(look, server.url)
        assert look.rows("#runs")[0][1] == "99.0"
        look.page.get_by_role("searchbox").fill("run01")
        assert names(look) == ["run01"] and look.said == []
