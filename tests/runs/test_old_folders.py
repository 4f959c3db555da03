"""Run folders of version 0.1.0 stay readable, and say what they said.

``folders_of_0_1_0`` holds a run of each kind that differs in its files: two rounds on forty digits, by
commands such as ``vhl run data=npz:digits.npz model=cnn model.width=2 rounds=2 partition=iid:2``. What that
version made of them is in ``expected.json``. ``own`` was begun where ``mine.py`` lies; its ``origin.json``
says so by a dot.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vhl.cli.main import main
from vhl.report.content import content
from vhl.report.verdict import verdicts
from vhl.runs.classifier import classifier, load_model
from vhl.runs.compare import compare
from vhl.runs.find import find_runs
from vhl.runs.folder import RunFolder
from vhl.runs.model import trained_model
from vhl.runs.resume import check_same
from vhl.session.session import Session

KEPT = Path(__file__).parent / "folders_of_0_1_0"
EXPECTED: dict[str, Any] = json.loads((KEPT / "expected.json").read_text(encoding="utf-8"))
NAMES = sorted(EXPECTED["probabilities"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, to be in."""
    return Path(shutil.copytree(KEPT, tmp_path_factory.mktemp("old") / "folders"))


@pytest.fixture(autouse=True)
def _there(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders)


def digits() -> np.ndarray:
    found: np.ndarray = np.load("digits.npz")["images"][:3]
    return found


def test_every_kind_is_there() -> None:
    found = sorted(run.path.name for run in find_runs([Path()]))
    assert found == NAMES and len(found) == 7


def test_a_comparison_has_the_same_numbers_and_words() -> None:
    comparison = compare(find_runs([Path()]))
    results = [(row.label, row.results[0]) for row in comparison.rows]
    found = [[label, own.best, own.final, own.drift, own.compute] for label, own in results]
    for now, then in zip(found, EXPECTED["rows"], strict=True):
        assert now[0] == then[0] and now[1:] == pytest.approx(then[1:], abs=1e-8)
    assert [verdict.text for verdict in verdicts(comparison)] == EXPECTED["verdicts"]


@pytest.mark.parametrize("name", NAMES)
def test_models_say_the_same_of_images(name: str) -> None:
    model = classifier(*trained_model(RunFolder(name)))
    with torch.no_grad():
        found = model(torch.from_numpy(digits()[..., None])).softmax(1)
    assert found.numpy() == pytest.approx(np.array(EXPECTED["probabilities"][name]), abs=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_commands_read_them(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Image.fromarray(digits()[0]).save(tmp_path / "zero.png")
    for command in (
        ["compare", name],
        ["report", name, "--output", str(tmp_path / "page.html")],
        ["predict", name, str(tmp_path)],
        ["export", name, "--output", str(tmp_path / "model.safetensors")],
    ):
        assert main(command) == 0, capsys.readouterr().err
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert load_model(tmp_path / "model.safetensors").classes == ("0", "1")


def test_a_page_shows_what_only_some_have() -> None:
    runs = {name: RunFolder(name) for name in ("scaffold", "theory", "deployed")}
    shown = {figure.name: figure for figure in content(list(runs.values()))["figures"]}
    assert "features-1" in shown
    (distance,) = [panel for panel in shown["theory"].panels if panel.title == "features as they are"]
    (series,) = distance.series
    assert series.places["round"].tolist() == [2.0]
    assert series.bands[1].mean == pytest.approx([0.499], abs=5e-4)
    assert runs["deployed"].data()["deployment"]["facts"][0]["name"] == "site-1"


def test_rounds_of_a_server_that_distils() -> None:
    assert [record.server for record in RunFolder("feddf").records()] == [{"distillation_steps": 4}] * 2
    assert {record.server for record in RunFolder("plain").records()} == {None}


@pytest.mark.parametrize("name", NAMES)
def test_what_the_next_round_starts_from(name: str) -> None:
    run = RunFolder(name)
    manifest = run.manifest()
    assert manifest is not None and run.rounds == 2
    state = run.load_state(manifest)
    assert state.participations == {0: 2, 1: 2} and len(state.server.parameters) > 500
    assert sorted(state.clients) == ([0, 1] if name == "scaffold" else [])
    assert ("engine.final" in state.server.state) == (name == "ccvr")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_same_experiment_with_more_rounds(name: str) -> None:
    run = RunFolder(name)
    check_same(run, run.experiment().with_(rounds=3))


class _ToldError(Exception):
    """Instead of the round that would come next."""


def test_who_goes_on_with_one_is_told_of_the_version(folders: Path) -> None:
    def tell(note: str) -> None:
        raise _ToldError(note)

    longer = RunFolder("plain").experiment().with_(rounds=3)
    with pytest.raises(_ToldError, match=r"plain was begun with vhl 0\.1\.0, and this is 0\.2"):
        next(iter(Session(longer, folders, resume=True, on_note=tell)))
