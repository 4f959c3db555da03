"""Several runs in one command: what is said of each, and what is left when they are stopped."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from vhl.cli import display, running
from vhl.experiment import Experiment
from vhl.runs.record import Record

Metrics = Callable[[Path], list[dict[str, Any]]]
NAMES = ["x-seed0", "x-seed1", "x-seed2"]


@pytest.fixture
def seeds(tiny: tuple[str, ...]) -> list[str]:
    """`vhl run` with three seeds."""
    return ["run", *tiny, "name=x", "--seeds=0,1,2"]


# --- lines ---------------------------------------------------------------------------------------------


def test_every_line_says_whose_it_is(vhl: Any, seeds: list[str], metrics: Metrics) -> None:
    answer = vhl(*seeds, "--at-once=2")
    assert answer.code == 0 and answer.err == ""
    lines = answer.out.splitlines()
    for name in NAMES:
        own = [line for line in lines if line.startswith(f"{name}: ")]
        records = metrics(Path("runs") / name)
        assert len(own) == 4 and len(records) == 2 and own[0] == f"{name}: 2 rounds to go"
        for line, record in zip(own[1:3], records, strict=True):
            expected = f"{name}: round {record['round']}/2  accuracy {100 * record['accuracy']:.1f}%  "
            assert line.startswith(expected) and re.fullmatch(r"[\d,]+ images/s", line[len(expected) :])
        best = 100 * max(record["accuracy"] for record in records)
        last = 100 * records[-1]["accuracy"]
        summary = f"{name}: best {best:.1f}%, mean of the last 10 % {last:.1f}%; in runs/{name}"
        assert own[3] == summary
    # the first two take turns, the third begins when one of them has ended
    whose = [re.match(r"x-seed\d", line) for line in lines]
    first = [match.group() for match in whose if match]
    assert first[:2] == NAMES[:2] and first.index("x-seed2") > first.index("x-seed0") + 3
    (row,) = [line for line in lines if "fedavg + vhl" in line]
    assert "±" in row and row.rstrip().endswith(" 3")


def test_a_name_with_brackets_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str], a_record: Callable[..., Record]
) -> None:
    """They are the terminal's colours elsewhere."""
    with display.Board(at_once=2) as board:
        board.begin("[b]x[/b]", 3, 0)
        board.show("[b]x[/b]", a_record(1, 0.25))
        board.end("[b]x[/b]")
    begun, round_ = capsys.readouterr().out.splitlines()
    assert begun == "[b]x[/b]: 3 rounds to go"
    assert round_ == "[b]x[/b]: round 1/3  accuracy 25.0%  6,000 images/s"


def test_one_at_a_time_needs_no_names(vhl: Any, seeds: list[str]) -> None:
    """As on a CPU where nothing is said; a run's lines stand together, its summary below."""
    answer = vhl(*seeds)
    kinds = [re.sub(r"\W.*", "", line) for line in answer.out.splitlines()]
    assert kinds[:12] == ["x", "round", "round", "x"] * 3
    for first in (0, 3):  # the line before the rounds, and the one after
        assert [line[:7] for line in answer.out.splitlines()[first:12:4]] == NAMES


def test_how_many_at_once_changes_no_number(vhl: Any, seeds: list[str], metrics: Metrics) -> None:
    for at_once in (1, 3):
        assert vhl(*seeds, f"--at-once={at_once}", f"--runs-dir={at_once}").code == 0
    for name in NAMES:
        assert metrics(Path("1") / name) == metrics(Path("3") / name)


def test_the_table_has_the_order_of_the_command(vhl: Any, tiny: tuple[str, ...]) -> None:
    """The shorter run ends first, but the first one named is the baseline."""
    answer = vhl("sweep", *tiny, "rounds=3,1", "--at-once=2")
    assert answer.code == 0
    ended = [line.split(":")[0] for line in answer.out.splitlines() if ": best" in line]
    assert ended == ["rounds=1", "rounds=3"]
    rows = [line.split()[3] for line in answer.out.splitlines() if line.strip().startswith("fedavg + vhl")]
    assert rows == ["rounds=3", "rounds=1"]


@pytest.mark.parametrize("at_once", [None, 3])
def test_on_a_gpu_four_go_side_by_side(
    vhl: Any, seeds: list[str], monkeypatch: pytest.MonkeyPatch, at_once: int | None
) -> None:
    """Where nothing is said; and no more than there are."""
    asked = []

    def nothing(sessions: Any, number: int) -> Any:
        asked.append((len(sessions), number))
        yield from ()

    class Device:
        type = "cuda"

    monkeypatch.setattr(running, "choose_device", lambda wanted: Device())
    monkeypatch.setattr(running, "together", nothing)
    said = [] if at_once is None else [f"--at-once={at_once}"]
    for words in ("0,1,2,3,4,5", "0,1"):
        vhl(*seeds[:-1], f"--seeds={words}", *said)
    assert asked == [(6, at_once or 4), (2, at_once or 2)]


# --- failing and stopping ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_class", "told"),
    [
        ([0.9, 0.0, 0.8], "b"),
        ([0.0, 0.9, 0.8, 0.0, 0.7], "a, d"),
        ([0.0] * 7 + [0.5] * 8, "a, b, c, d, e and 2 others"),
        ([0.0, 0.9], ""),  # half of them: the accuracy tells
        ([0.9, None, 0.8], ""),  # of which there are no test images
        ([], ""),
    ],
)
def test_classes_that_a_mean_hides_are_named(per_class: list[float | None], told: str) -> None:
    rounds = [SimpleNamespace(per_class=own) for own in ([0.0, *per_class[1:]], per_class, None)]
    classes = list("abcdefghijklmno")[: len(per_class)]
    assert running._missed_classes(rounds, classes) == told  # type: ignore[arg-type]


def test_a_class_that_is_never_right_is_told_at_the_end(
    vhl: Any, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        running, "_missed_classes", lambda records, classes: f"{len(records)} of {classes[3]}"
    )
    assert (
        vhl("run", *tiny, "name=x").err
        == "note: in the last round no test image was recognised of: 2 of 3.\n"
    )


def test_a_seed_that_fails_does_not_cost_the_others(
    vhl: Any, seeds: list[str], metrics: Metrics, unlucky: Any
) -> None:
    unlucky(lambda simulation: simulation.experiment.seeds.batches == 1)
    answer = vhl(*seeds, "--at-once=2")
    answer.complains("It is unlucky.")
    assert [len(metrics(Path("runs") / name)) for name in NAMES] == [2, 0, 2]
    assert "x-seed1: round" not in answer.out and answer.out.count(": best") == 2
    (row,) = [line for line in answer.out.splitlines() if "fedavg + vhl" in line]
    assert row.rstrip().endswith(" 2")


def rounds_saved(name: str) -> int:
    file = Path("runs") / name / "state" / "manifest.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["round"]) if file.exists() else 0


@pytest.mark.parametrize(("at_once", "call"), [(1, 4), (2, 4), (3, 1), (3, 6)])
def test_ctrl_c_and_the_same_command_again(
    vhl: Any, seeds: list[str], metrics: Metrics, ctrl_c: Any, at_once: int, call: int
) -> None:
    words = [*seeds, f"--at-once={at_once}", "checkpoint_every=100"]
    ctrl_c(call)
    answer = vhl(*words)
    assert answer.code == 130
    assert answer.err.strip() == "vhl: stopped. The same command with --resume continues."
    assert sum(map(rounds_saved, NAMES)) == call - 1  # every round that was through, of every run
    if at_once > 1:
        assert all(rounds_saved(name) == answer.out.count(f"{name}: round") for name in NAMES)
    again = vhl(*words, "--resume")
    assert again.code == 0 and len(re.findall(r"round \d", again.out)) == 6 - (call - 1)
    vhl(*words, "--runs-dir=straight")
    for name in NAMES:
        assert metrics(Path("runs") / name) == metrics(Path("straight") / name)


def test_ctrl_c_before_any_run_has_begun(
    vhl: Any, seeds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vhl.rounds.local.virtual_set", stopped)
    answer = vhl(*seeds, "--at-once=2")
    assert answer.code == 130 and answer.err.strip() == "vhl: stopped."
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_a_stopped_sweep_says_how_to_go_on(vhl: Any, tiny: tuple[str, ...], ctrl_c: Any) -> None:
    words = ["sweep", *tiny, "training.lr=0.01,0.1"]
    ctrl_c(2)
    answer = vhl(*words, "--at-once=2")
    assert answer.code == 130 and "The same command" in answer.err
    told = ["--resume"] if "--resume" in answer.err else []
    assert vhl(*words, "--at-once=2", *told).code == 0


# --- until some time -----------------------------------------------------------------------------------


@pytest.fixture
def three() -> list[Experiment]:
    """Two rounds each, with names of their own."""
    settings = {
        "data": {"name": "digits", "size": 8},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "cnn", "width": 4},
        "objective": "plain",
        "rounds": 2,
        "clients_per_round": 1,
        "checkpoint_every": 100,
    }
    return [Experiment(**{**settings, "name": name, "seeds": {"batches": n}}) for n, name in enumerate(NAMES)]


@pytest.mark.parametrize("at_once", [1, 3])
def test_time_is_up_and_everything_is_saved(three: list[Experiment], at_once: int) -> None:
    ended: list[str] = []
    folders, failed = running.run_all(
        three,
        Path("runs"),
        resume=False,
        data_dir=None,
        at_once=at_once,
        until=time.monotonic(),
        on_end=lambda run: ended.append(run.path.name),
    )
    assert (folders, failed, ended) == ([], {}, [])
    assert [rounds_saved(name) for name in NAMES] == [1, 0, 0]  # the first round that was through
    assert Path("runs/x-seed1").exists() == (at_once > 1)


def test_time_is_up_after_the_first_run(three: list[Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds and its end: three looks at the clock."""
    clock = iter([97.0, 98.0, 100.0])
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    folders, _ = running.run_all(three, Path("runs"), resume=False, data_dir=None, at_once=1, until=100.0)
    assert [folder.path.name for folder in folders] == NAMES[:1]
    assert [rounds_saved(name) for name in NAMES] == [2, 0, 0]


def test_every_run_is_handed_over_as_it_ends(three: list[Experiment], unlucky: Any) -> None:
    seen: list[Any] = []
    unlucky(lambda simulation: simulation.experiment.seeds.batches == 1)
    folders, failed = running.run_all(
        three,
        Path("runs"),
        resume=False,
        data_dir=None,
        at_once=1,
        until=time.monotonic() + 600,
        on_end=lambda run: seen.append((run.path.name, len(run.records()), [rounds_saved(n) for n in NAMES])),
    )
    assert seen == [("x-seed0", 2, [2, 0, 0]), ("x-seed2", 2, [2, 0, 2])]
    assert [folder.path.name for folder in folders] == ["x-seed0", "x-seed2"] and list(failed) == ["x-seed1"]


# --- on a terminal -------------------------------------------------------------------------------------


def drawn(screen: io.StringIO) -> list[str]:
    """All lines that were ever drawn, without colours."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def bars(board: display.Board) -> list[str]:
    """The bars as they stand now."""
    file = io.StringIO()
    Console(file=file, width=80).print(board._bars.get_renderable())
    return [line for line in file.getvalue().splitlines() if line.strip()]


LONG = "a-name-that-is-much-longer-than-its-place"


@pytest.mark.usefixtures("screen")
def test_a_bar_for_each_run(a_record: Callable[..., Record]) -> None:
    with display.Board(at_once=3) as board:
        board.begin(LONG, 30, 11)
        assert re.match(r"…h-longer-than-its-place [━╺╸]+ +round 11/30 ", *bars(board))  # goes on there
        board.begin("[b]short[/b]", 3, 0)
        board.show(LONG, a_record(12, 0.5))
        board.show("[b]short[/b]", a_record(1, 0.25))
        board.show(LONG, a_record(13, 0.375))
        long, short = bars(board)
        assert re.fullmatch(
            r"…h-longer-than-its-place [━╺╸]+ +round 13/30  accuracy 37.5% \(best 50.0%\) .+", long
        )
        assert re.match(r"\[b\]short\[/b\] +[━╺╸]+ +round 1/3  +accuracy 25.0% \(best 25.0%\) ", short)
        assert len(long) <= 80 and len(short) <= 80 and "…" not in long[1:] + short
        board.end(LONG)
        (short,) = bars(board)
        assert short.startswith("[b]short[/b]")
        board.begin("third", 9, 0)
        board.show("third", a_record(9, 1.0))
        assert [bar.split()[0] for bar in bars(board)] == ["[b]short[/b]", "third"]
        board.end("never shown")  # one that failed before its first round
        board.end("third")
        board.end("[b]short[/b]")
        assert bars(board) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_note_is_not_painted_over_by_bars(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """It goes above them, unless standard error goes elsewhere."""
    elsewhere = io.StringIO()
    errors = Console(file=elsewhere, force_terminal=terminal, width=80)
    monkeypatch.setattr(display, "errors", errors)
    with display.Board(at_once=2) as board:
        board.note("before")
        board.begin("one", 3, 0)
        board.note("of [b]two[/b]")
        board.begin("two", 3, 0)
    assert ("note: of [b]two[/b]" in drawn(screen)) == terminal
    assert drawn(elsewhere) == ["note: before"] + ["note: of [b]two[/b]"] * (not terminal)


@pytest.mark.usefixtures("screen")
def test_seeds_can_be_told_apart(a_record: Callable[..., Record]) -> None:
    with display.Board(at_once=2) as board:
        for seed in (0, 1):
            board.begin(f"digits-lda-fedavg-vhl-seed{seed}", 9, 0)
        first, second = bars(board)
    assert first.split("━")[0] != second.split("━")[0]


def test_one_after_the_other_each_bar_stays(screen: io.StringIO, a_record: Callable[..., Record]) -> None:
    with display.Board(at_once=1) as board:
        for title in ("one", "two"):
            board.begin(title, 2, 0)
            for round_ in (1, 2):
                board.show(title, a_record(round_, round_ / 4))
            board.end(title)
    lines = drawn(screen)
    assert lines.count("one") == lines.count("two") == 1
    last = [line for line in lines if "round 2/2  accuracy 50.0% (best 50.0%)  6,000 images/s" in line]
    between = lines[lines.index("one") : lines.index("two")]
    assert last[0] in between and last[-1] == lines[-1]


def test_a_whole_command_on_a_terminal(
    vhl: Any, tiny: tuple[str, ...], screen: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third makes its virtual images, with a bar of its own, while another one's bar is there."""
    monkeypatch.setattr("vhl.virtual.noise.Noise.generate", _with_progress())
    answer = vhl(
        "sweep",
        *tiny,
        "virtual.per_class=3,4",
        "rounds=3,2",
        "--at-once=2",
        f"--data-dir={tmp_path / 'data'}",
    )
    assert answer.code == 0 and answer.err == ""
    lines = drawn(screen)
    for per_class in (3, 4):
        for rounds in (3, 2):  # a summary has a line of its own, whatever its length
            name = f"virtual.per_class={per_class},rounds={rounds}"
            assert any(line.startswith(f"…{name[-23:]} ━") for line in lines)
            (summary,) = [line for line in lines if line.startswith(f"{name}: best ")]
            assert summary.endswith(f"in runs/sweep/{name}")
    assert sum("making virtual images" in line and "100%" in line for line in lines) >= 2
    assert all(len(line) <= 80 for line in lines if ": best " not in line)


def _with_progress() -> Callable[..., Any]:
    from vhl.virtual.noise import Noise

    generate = Noise.generate

    def told(self: Any, classes: int, count: int, shape: Any, seed: int, place: Any) -> Any:
        for done in (1, 2):
            place.progress(done, 2)
        return generate(self, classes, count, shape, seed, place)

    return told
