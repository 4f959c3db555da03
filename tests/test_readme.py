"""Every command and every piece of Python in the README and the guides runs."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from vhl.cli import settings
from vhl.cli.main import build_parser, main
from vhl.paper.evidence import Evidence
from vhl.paper.queue import Request, queue, select
from vhl.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUICK = ["rounds=1", "virtual.per_class=20", "model.width=4"]
"""Laid over each run, so that the commands are tested and not the patience."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the README's images in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VHL_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)
    for site, classes in {"north": ["healthy", "ill"], "south": ["healthy", "ill"], "west": ["ill"]}.items():
        for name in classes:
            folder = tmp_path / "scans" / site / name
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = rng.integers(0, 255, (20 + number, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return tmp_path


def test_the_readme_runs_from_top_to_bottom(place: Path) -> None:
    (place / "examples").symlink_to(ROOT / "examples")
    commands = 0
    for language, text in BLOCKS.findall(README):
        if language == "python":
            exec(compile(text, "README.md", "exec"), {})
            named = re.match(r"# (\w+\.py)\n", text)
            if named:
                (place / named[1]).write_text(text, encoding="utf-8")
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "vhl"
            quick = QUICK if words[0] in ("run", "sweep") else []
            assert main([*words, *quick]) == 0, line
            commands += 1
    assert commands >= 6
    assert (place / "runs" / "scans" / "metrics.jsonl").is_file()
    assert (place / "runs" / "mine" / "metrics.jsonl").is_file()


def test_contributors_are_shown_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = re.findall(r"`(\w+)/`", "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)))
    assert set(shown) == {file.parent.name for file in (ROOT / "src" / "vhl").glob("*/__init__.py")}


def test_the_parts_that_contributors_are_shown(place: Path) -> None:
    (_, source), (_, commands) = BLOCKS.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    (place / "my_parts.py").write_text(source, encoding="utf-8")
    for program, *words in (shlex.split(line) for line in commands.splitlines()):
        quick = ["rounds=1", "virtual.per_class=20", "name=own"] if words[0] == "run" else []
        assert program == "vhl" and main([*words, *quick]) == 0, words
    (record,) = RunFolder(place / "runs" / "own").records()
    assert record.accuracy is not None and {"smallness", "calibration", "virtual"} <= record.loss.keys()


def test_the_guide_to_the_theorem(place: Path) -> None:
    (_, text), (_, evidence) = BLOCKS.findall((ROOT / "docs" / "theory.md").read_text(encoding="utf-8"))
    install, *lines = (shlex.split(line) for line in text.splitlines())
    assert install == ["pip", "install", "vhl[analysis]"]
    for program, *words in lines:
        quick = ["keep_at=[1]", "rounds=2", *QUICK[1:]] if words[0] == "run" else []
        assert program == "vhl" and main([*words, *quick]) == 0, words
    assert len(list(place.glob("runs/*/theory.json"))) == 2
    asked = [build_parser().parse_args(shlex.split(line)[1:]) for line in evidence.splitlines()]
    runs = [line for line in asked if line.command == "paper" and line.action == "run"]
    made = {
        run.runs_dir / one.name
        for run in runs
        for one in queue(Request(select(run.rows), run.profile, run.virtual), Evidence([]))
    }
    assert made == {line.run for line in asked if line.command == "theory"}


def test_the_experiments_with_light_without_a_gpu(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "examples").symlink_to(ROOT / "examples")
    found = BLOCKS.findall((ROOT / "docs" / "light-in-small.md").read_text(encoding="utf-8"))
    lines = [shlex.split(line) for _, text in found for line in text.splitlines()]
    sweep, compare, *sized, run, curvature = lines
    quick = ["data=digits", *QUICK[1:], "clients_per_round=1", "training.batch_size=32", "rounds=12"]
    assert run[0] == "vhl" and main([*run[1:], *quick, "training.freeze_batch_norm=1"]) == 0
    monkeypatch.setattr(sys, "argv", curvature[1:])
    assert curvature[0] == "python"
    runpy.run_path(curvature[1], run_name="__main__")
    assert "client 9: " in capsys.readouterr().out
    short = ["rounds=1", "features_at=1", "virtual.per_class=20", "training.epochs=1", "clients_per_round=1"]
    assert sweep[0] == "vhl" and main([*sweep[1:], *short, "--seeds", "0"]) == 0
    assert "fedavg + vhl-light" in capsys.readouterr().out
    assert compare[0] == "vhl" and main(compare[1:]) == 0
    assert "over the last 75 % of the rounds" in " ".join(capsys.readouterr().out.split())
    assert len(sized) == 4
    for program, *words in sized:  # of data that are not at hand: read, not run
        asked = build_parser().parse_args(words)
        assert program == "vhl" and asked.command == "run" and settings.read(asked.settings).data.size == 16


def test_settings_in_tables_about_light() -> None:
    text = (ROOT / "docs" / "light-in-small.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| [^|]+ \| `([\w.=: -]+)` \|", text, re.MULTILINE)
    read = {cell: settings.read([str(ROOT / "examples" / "demo.toml"), *cell.split()]) for cell in found}
    changed = len({experiment.model_dump_json() for experiment in read.values()})
    assert changed == len(found) == 21  # each is a setting, and no two are the same


def test_the_guide_to_deployment(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But for `local`, which the next test runs."""
    found = [text for language, text in BLOCKS.findall(DEPLOYMENT) if language == "bash"]
    for program, *words in (shlex.split(line) for text in found for line in text.splitlines()):
        assert program == "vhl" and words[0] == "deploy"
        if words[1] != "local":
            assert main(words) == 0, words
    assert "flwr run app vhl --stream" in capsys.readouterr().out


@pytest.mark.slow
def test_the_guide_to_deployment_on_one_machine(place: Path) -> None:
    (line,) = re.findall("^vhl deploy local .*$", DEPLOYMENT, re.MULTILINE)
    assert main(shlex.split(line)[1:]) == 0
    assert len(list(place.glob("runs/*/report.html"))) == 1


def test_the_guides_app_of_ones_own(place: Path) -> None:
    """Its strategy and its loop, for its twenty rounds: five clients whose labels follow one rule."""
    torch.manual_seed(0)
    server, client = (text for language, text in BLOCKS.findall(DEPLOYMENT) if language == "python")
    imports, body = client.split("\n\n", 1)
    model = torch.nn.Linear(4, 2)
    rule = torch.randn(4, 2)

    class Loader(list[tuple[torch.Tensor, torch.Tensor]]):
        dataset = range(64)

    class Nodes(Grid):
        def get_node_ids(self) -> list[int]:
            return [1, 2, 3, 4, 5]

        def send_and_receive(self, messages: Any, **options: Any) -> list[Message]:
            return [self.answer(message) for message in messages]

        def answer(self, message: Message) -> Message:
            if message.metadata.message_type != "train":
                return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
            message.metadata.__dict__["_message_id"] = "1"
            node = message.metadata.dst_node_id
            own = torch.nn.Linear(4, 2)
            images = torch.randn(64, 4) + node
            names = {
                "model": own,
                "message": message,
                "loader": Loader([(images, (images @ rule).argmax(1))]),
                "optimizer": torch.optim.SGD(own.parameters(), lr=0.01, momentum=0.9),
                "cross_entropy": torch.nn.functional.cross_entropy,
            }
            text = body.replace("/var/lib/app/run-7", f"state/client-{node}")
            code = f"from pathlib import Path\n{imports}\ndef train():\n{textwrap.indent(text, '    ')}"
            exec(compile(code, "deployment.md", "exec"), names)
            return names["train"]()  # type: ignore[operator, no-any-return]

        create_message = pull_messages = push_messages = run = set_run = None  # type: ignore[assignment]

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    names = {"model": model, "grid": Nodes(), "ArrayRecord": ArrayRecord}
    exec(compile(server.replace("strategy.start", "result = strategy.start"), "deployment.md", "exec"), names)
    trained = names["result"].arrays.to_torch_state_dict()  # type: ignore[attr-defined]
    model.load_state_dict(trained)
    images = torch.randn(500, 4) + 3
    assert (model(images).argmax(1) == (images @ rule).argmax(1)).float().mean() > 0.8
    assert len(list((place / "state").iterdir())) == 5


def test_the_readme_names_every_component() -> None:
    from vhl.config.listing import available

    for room in ("algorithms", "objectives", "generators", "sources", "partitions", "models", "distances"):
        for name in available(room):
            shown = {"dataset": "dataset:", "folder": "folder:", "npz": "npz:"}.get(name, name)
            assert f"`{shown}" in README, f"{room}: {name}"


def headings(document: Path) -> set[str]:
    """Of a document, as links name them: lower case, a dash for each space, no other marks."""
    found = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", words.lower()).replace(" ", "-") for words in found}


DOCUMENTS = [path for place in (".", "docs", "benchmarks") for path in ROOT.glob(f"{place}/*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: str(one.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" not in link:
            path, _, heading = link.partition("#")
            target = document.parent / path if path else document
            assert target.exists(), link
            assert not heading or heading in headings(target), link
