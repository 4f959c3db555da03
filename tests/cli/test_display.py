from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from vhl.cli import display
from vhl.runs.compare import Comparison, Result, Row
from vhl.runs.record import Record

ACCURACIES = [0.25, None, 0.125]
Make = Callable[..., Record]


def follow(title: str, a_record: Make) -> None:
    with display.Board(at_once=1) as board:
        board.begin(title, 3, 0)
        for record in (a_record(number, accuracy) for number, accuracy in enumerate(ACCURACIES, 1)):
            board.show(title, record)
        board.end(title)


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], a_record: Make) -> None:
    follow("title", a_record)
    assert capsys.readouterr().out.splitlines() == [
        "title: 3 rounds to go",
        "round 1/3  accuracy 25.0%  6,000 images/s",
        "round 2/3  accuracy –  6,000 images/s",
        "round 3/3  accuracy 12.5%  6,000 images/s",
    ]


def test_a_live_bar_on_a_terminal(screen: io.StringIO, a_record: Make) -> None:
    title = "a-name-as-long-as-the-default-names-are-seed0"
    follow(title, a_record)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert title in text
    last = re.split(r"[\r\n]+", text.strip())[-1]
    assert re.search(r"━+ round 3/3  accuracy 12\.5% \(best 25\.0%\)  6,000 images/s 0:00:00", last)
    assert len(last) <= 80


def a_comparison() -> Comparison:
    slow = Result(best=0.5, final=0.4, rounds=12, samples=120_000, bytes=48_000_000, drift=1.25, compute=1.0)
    slower = Result(best=0.7, final=0.5, rounds=None, samples=None, bytes=None, drift=1.75, compute=1.0)
    fast = Result(best=0.75, final=0.6, rounds=4, samples=80_000, bytes=16_000_000, drift=0.5, compute=2.0)
    never = Result(best=0.1, final=0.1, rounds=None, samples=None, bytes=None, drift=0.5, compute=2.0)
    runs = {"fedavg + plain": (slow,), "fedavg + vhl": (fast,), "x": (never,), "y": (slow, slower)}
    return Comparison(tuple(Row(name, len(own), own, target=0.5) for name, own in runs.items()))


def test_the_numbers_of_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    display.console.print(display.comparison_table(a_comparison()))
    out = capsys.readouterr().out
    assert "50.0%" in out  # the target
    cells = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    # best (√0.02 = 14.1 points), last tenth (√0.005), rounds, speed-up, images, traffic, drift, compute
    for row in (
        "fedavg + plain | 50.0 | 40.0 | 12 | ×1.0 | 120 k | 48 MB | 1.25 | ×1.00 | 1",
        "fedavg + vhl | 75.0 | 60.0 | 4 | ×3.0 | 80 k | 16 MB | 0.50 | ×2.00 | 1",
        "x | 10.0 | 10.0 | never | – | – | – | 0.50 | ×2.00 | 1",
        "y | 60.0 ± 14.1 | 45.0 ± 7.1 | 12 (1 of 2) | – | – | – | 1.50 | ×1.00 | 2",
    ):
        assert row.split(" | ") in cells


def test_the_time_of_a_round_stands_below_its_compute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "time", lambda self, row: 1.87 if "vhl" in row.label else None)
    display.console.print(display.comparison_table(a_comparison()))
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if "fedavg + vhl" in line)
    assert "×2.00" in lines[place] and lines[place + 1].strip() == "(×1.87)"


def test_each_problem_has_its_own_target(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(a_comparison().rows)
    rows[2] = replace(rows[2], target=0.25, problem="another")
    display.console.print(display.comparison_table(Comparison(tuple(rows))))
    out = capsys.readouterr().out
    assert "to target" in out and "12 (50.0%)" in out and "never (25.0%)" in out


def test_a_comparison_keeps_its_labels_on_a_narrow_terminal(screen: io.StringIO) -> None:
    display.console.print(display.comparison_table(a_comparison()))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert len(re.findall("fedavg", text)) == 2 and "plain" in text and "vhl" in text
    assert "…" not in text and "48 MB" in text and text.count("×2.00") == 2
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1_000, "1 kB"),
        (123_456, "123 kB"),
        (999_600, "1 MB"),
        (1.5e9, "1.5 GB"),
        (2e12, "2 TB"),
        (3e15, "3e+03 TB"),
    ],
)
def test_three_digits_and_a_prefix(number: float, text: str) -> None:
    assert display.short(number, "B") == text
