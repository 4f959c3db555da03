from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vhl.cli import running
from vhl.cli.display import Board
from vhl.report.serve import LiveServer, serving
from vhl.runs.compare import compare
from vhl.runs.find import find_runs
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record


def on(page: Path | str) -> dict[str, Any]:
    """What is on a page."""
    text = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    (found,) = re.findall(r'id="data">(.*?)</script>', text)
    data: dict[str, Any] = json.loads(found)
    return data


@pytest.fixture
def runs(trained: Path) -> list[Path]:
    """The trained run, and one that differs in its learning rate and got nowhere."""
    first, second = shutil.copytree(trained, "runs/first"), shutil.copytree(trained, "runs/second")
    other = RunFolder(second).experiment().with_(training={"lr": 0.5})
    (Path(second) / "experiment.toml").write_text(other.toml(), encoding="utf-8")
    metrics = Path(second) / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    metrics.write_text(
        "".join(json.dumps({**line, "accuracy": 0.125}) + "\n" for line in lines), encoding="utf-8"
    )
    return [Path(first), Path(second)]


def test_the_page_of_one_run(vhl: Any, trained: Path) -> None:
    answer = vhl("report", trained)
    assert (answer.code, answer.out, answer.err) == (0, "written to report.html\n", "")
    shown = on(Path("report.html"))
    assert shown["title"] == "pictures" and shown["verdicts"] == []
    accuracies = [record.accuracy for record in RunFolder(trained).records()]
    assert shown["runs"][0]["columns"]["accuracy"] == pytest.approx(accuracies, rel=1e-5)
    assert shown["problems"][0]["classes"] == ["dark", "light"]
    assert shown["runs"][0]["picture"] == 0 and shown["runs"][0]["last"] is not None


def test_several_runs_and_a_folder_of_them_give_the_same(vhl: Any, runs: list[Path]) -> None:
    assert vhl("report", *runs, "-o", "several pages/a.html").out == "written to several pages/a.html\n"
    assert vhl("report", "runs", "--output", "b.html").code == 0
    several, folder = on(Path("several pages/a.html")), on(Path("b.html"))
    assert several == folder and several["title"] == "runs"
    labels = [row.label for row in compare(find_runs([Path("runs")])).rows]
    assert [group["label"] for group in several["groups"]] == labels
    (verdict,) = several["verdicts"]
    assert verdict.startswith(f"{labels[1]} is worse than {labels[0]}: 12.5 % instead of")


def test_the_first_run_is_the_baseline(vhl: Any, runs: list[Path]) -> None:
    vhl("report", *reversed(runs))
    assert {group["target"] for group in on(Path("report.html"))["groups"]} == {0.12}


@pytest.mark.parametrize("percentage", [50, 12.5])
def test_the_target_is_in_percent(vhl: Any, runs: list[Path], percentage: float) -> None:
    vhl("report", *runs, "--target", percentage)
    shown = on(Path("report.html"))
    assert {group["target"] for group in shown["groups"]} == {percentage / 100}
    second = shown["groups"][1]["rounds"]
    assert second is None if percentage == 50 else second["mean"] == 1


def test_the_share_of_rounds_to_judge_by(vhl: Any, tiny: tuple[str, ...]) -> None:
    vhl("run", *tiny, "rounds=4", "name=run")
    file = Path("runs/run/metrics.jsonl")
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    measured = zip(records, [0.1, 0.2, 0.4, 0.6], strict=True)
    lines = [json.dumps({**record, "accuracy": accuracy}) for record, accuracy in measured]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for words, share, mean in (([], 0.1, 0.6), (["--last", "75"], 0.75, 0.4)):
        assert vhl("report", "runs/run", *words).code == 0
        shown = on(Path("report.html"))
        assert shown["last"] == share and shown["groups"][0]["final"]["mean"] == pytest.approx(mean)


@pytest.mark.parametrize("target", ["0", "-3", "101", "nan", "half"])
def test_a_target_that_is_no_percentage(vhl: Any, trained: Path, target: str) -> None:
    answer = vhl("report", trained, f"--target={target}")
    assert answer.code == 2 and f"--target: {target!r} is no percentage" in answer.err
    assert not Path("report.html").exists()


def test_natural_images_only_where_asked_for(vhl: Any, trained: Path) -> None:
    vhl("report", trained)
    assert "natural" not in on(Path("report.html"))["problems"][0]
    assert vhl("report", trained, "--show-natural").code == 0
    assert on(Path("report.html"))["problems"][0]["natural"].startswith("data:image/png;base64,")


def test_what_is_no_run(vhl: Any) -> None:
    Path("empty").mkdir()
    vhl("report", "empty").complains("empty is no run folder and holds none")
    vhl("report", "nowhere").complains("nowhere")
    assert vhl("report").code == 2


def test_a_run_that_was_just_begun(vhl: Any, trained: Path) -> None:
    (Path(shutil.copytree(trained, "begun")) / "metrics.jsonl").unlink()
    vhl("report", "begun").complains("evaluated round")


def test_a_place_that_cannot_be_written(vhl: Any, trained: Path) -> None:
    Path("taken").mkdir()
    vhl("report", trained, "-o", "taken").complains("taken", "cannot be written")
    assert list(Path("taken").iterdir()) == []


def test_figures_beside_the_page(vhl: Any, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same numbers; what they show is tested where they are drawn."""
    drawn: list[tuple[Any, Path]] = []

    def write_figures(found: Any, folder: Path) -> list[Path]:
        drawn.append((json.loads(json.dumps(found)), folder))
        return [folder / "one.png", folder / "one.svg"]

    monkeypatch.setattr("vhl.report.figures.write_figures", write_figures)
    answer = vhl("report", trained, "--figures", "pictures")
    lines = ["report.html", "pictures/one.png", "pictures/one.svg"]
    assert answer.out.splitlines() == [f"written to {line}" for line in lines]
    assert drawn == [(on(Path("report.html")), Path("pictures"))]


# --- the page at the end of every run ------------------------------------------------------------------


def test_a_run_leaves_its_page_in_its_folder(vhl: Any, tiny: tuple[str, ...]) -> None:
    answer = vhl("run", *tiny, "name=mine")
    assert answer.out.splitlines()[-1] == "report: runs/mine/report.html"
    assert on(Path("runs/mine/report.html"))["title"] == "mine"
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mine"]


@pytest.mark.parametrize(("settings", "page"), [(["name=mine"], "mine"), ([], "digits-lda-fedavg-vhl")])
def test_seeds_have_one_page_beside_their_folders(
    vhl: Any, tiny: tuple[str, ...], settings: list[str], page: str
) -> None:
    answer = vhl("run", *tiny, "rounds=1", *settings, "--seeds=3,4")
    assert answer.out.splitlines()[-1] == f"report: runs/{page}.html"
    assert [run["seed"] for run in on(Path(f"runs/{page}.html"))["runs"]] == [3, 4]
    assert not list(Path("runs").glob("*/report.html"))


def test_a_sweep_has_a_page_in_its_folder(vhl: Any, tiny: tuple[str, ...]) -> None:
    settings = [setting for setting in tiny if not setting.startswith("objective")]
    answer = vhl("sweep", *settings, "rounds=1", "objective=plain,naive", "--name=both")
    assert answer.code == 0 and answer.out.splitlines()[-1] == "report: runs/both/report.html"
    shown = on(Path("runs/both/report.html"))
    assert [group["label"] for group in shown["groups"]] == ["fedavg + plain", "fedavg + naive"]
    assert shown["groups"][1]["gain"] is not None and len(shown["verdicts"]) == 1
    # the page is no run: the folder can be reported as a whole again, and says the same
    assert vhl("report", "runs/both", "-o", "again.html").code == 0
    again = on(Path("again.html"))
    assert [again[key] for key in ("groups", "verdicts")] == [shown[key] for key in ("groups", "verdicts")]


# --- while it trains -----------------------------------------------------------------------------------


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[LiveServer]:
    """Every server that a command starts."""
    started: list[LiveServer] = []

    @contextmanager
    def watched(*arguments: Any) -> Iterator[LiveServer]:
        with serving(*arguments) as server:
            started.append(server)
            yield server

    monkeypatch.setattr(running, "serving", watched)
    return started


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_the_page_answers_while_runs_train(
    vhl: Any,
    tiny: tuple[str, ...],
    servers: list[LiveServer],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    seen = []
    show = Board.show

    def look(board: Board, title: str, record: Record) -> None:
        show(board, title, record)
        seen.append(on(fetch(servers[0].url)))

    monkeypatch.setattr(Board, "show", look)
    words = ["--seeds=0,1"] if command == "run" else ["training.lr=0.01,0.02", "--name=two"]
    answer = vhl(command, *tiny, *words, "--live")
    (server,) = servers
    assert answer.code == 0 and answer.err == ""
    assert answer.out.splitlines()[0] == f"Open {server.url} in a browser to watch."
    assert server.url.startswith("http://127.0.0.1:")
    assert all(shown["live"] for shown in seen)
    rounds = [[run["columns"]["round"][-1] for run in shown["runs"]] for shown in seen]
    assert rounds == [[1], [2], [2, 1], [2, 2]]
    with pytest.raises(OSError, match="refused"):
        fetch(server.url)


def test_a_port_and_a_host_of_ones_own(vhl: Any, tiny: tuple[str, ...], servers: list[LiveServer]) -> None:
    with serving(dict) as taken:
        port = taken.server_port
        vhl("run", *tiny, "--live", f"--port={port}").complains(f"127.0.0.1:{port}", "--port")
    assert not Path("runs").exists()
    answer = vhl("run", *tiny, "rounds=1", "--live", f"--port={port}", "--host=127.0.0.2")
    assert answer.out.startswith(f"Open http://127.0.0.2:{port}/ in")


def test_nothing_is_served_unless_asked_for(
    vhl: Any, tiny: tuple[str, ...], servers: list[LiveServer]
) -> None:
    answer = vhl("run", *tiny, "rounds=1")
    assert servers == [] and "Open" not in answer.out
