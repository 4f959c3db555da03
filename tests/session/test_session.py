from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.simulation import Simulation
from vhl.runs.folder import RunFolder
from vhl.runs.model import kept_rounds
from vhl.session.session import Session, default_name

Run = Callable[..., Path]
Content = Callable[[Path], dict[str, Any]]


# --- what a run leaves ---------------------------------------------------------------------------------


def test_a_record_is_on_disk_when_its_round_is_reported(
    experiment: Experiment, data_dir: Path, tmp_path: Path
) -> None:
    session = Session(experiment, tmp_path, data_dir=data_dir)
    for record in session:
        assert session.folder.records()[-1] == record
        assert len(session.folder.records()) == record.round


def test_data_json_describes_the_problem(finished: Path, experiment: Experiment) -> None:
    data = json.loads((finished / "data.json").read_text(encoding="utf-8"))
    counts = np.array(data["counts"])
    assert counts.shape == (4, 10)  # clients × classes
    # 400 images; a fifth of each class to test on, then a fifth of what is left for validation
    assert counts.sum() + data["test_samples"] == pytest.approx(400 - 0.2 * 320, abs=5)
    assert data["classes"] == [str(digit) for digit in range(10)]
    assert (data["channels"], data["size"], data["outputs"]) == (1, [8, 8], 20)
    assert data["virtual_classes"] == 10


def test_the_best_model_is_the_one_of_the_best_validation_round(
    experiment: Experiment, finished: Path, run_in: Run, tmp_path: Path
) -> None:
    accuracies = [record.validation_accuracy for record in RunFolder(finished).records()]
    best = 1 + int(np.argmax(accuracies))
    manifest = RunFolder(finished).manifest()
    assert manifest is not None and manifest["best"]["round"] == best
    assert manifest["best"]["validation_accuracy"] == max(accuracies)
    kept = run_in(experiment.with_(keep_at=[best]), tmp_path) / "models" / f"round-{best:06d}.safetensors"
    expected, found = load_file(kept), load_file(finished / "models" / manifest["best"]["file"])
    assert all(found[name].equal(expected[name]) for name in expected)


def test_features_are_those_of_the_evaluation(finished: Path) -> None:
    features = load_file(finished / "features" / "round-000003.safetensors")
    record = RunFolder(finished).records()[2]
    hits = features["server.test.logits"].argmax(1) == features["server.test.labels"]
    assert float(hits.float().mean()) == pytest.approx(record.accuracy)
    assert features["clients"].tolist() == record.clients


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "digits-lda-fedavg-vhl-seed0"),
        ({"algorithm": "fedprox", "seeds": {"batches": 3}}, "digits-lda-fedprox-vhl-seed3"),
        ({"data": "folder:my images", "partition": "given"}, "folder-given-fedavg-vhl-seed0"),
    ],
)
def test_default_name(settings: dict[str, Any], name: str) -> None:
    assert default_name(Experiment(**settings)) == name


def test_default_name_of_an_own_method(tmp_path: Path) -> None:
    file = tmp_path / "for_the_name.py"
    file.write_text("from vhl.algorithms.fedavg import FedAvg\nclass Mine(FedAvg): pass\n", encoding="utf-8")
    assert default_name(Experiment(algorithm=f"{file}:Mine")) == "digits-lda-Mine-vhl-seed0"


# --- going on ------------------------------------------------------------------------------------------


def test_more_rounds_give_what_a_longer_run_gives(
    experiment: Experiment, finished: Path, run_in: Run, content: Content, tmp_path: Path
) -> None:
    run_in(experiment.with_(rounds=3), tmp_path)
    longer = run_in(experiment, tmp_path, resume=True)
    assert content(longer) == content(finished)


def test_a_finished_run_has_nothing_left_to_do(
    experiment: Experiment, finished: Path, data_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "tiny")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert list(Session(experiment, tmp_path, resume=True, data_dir=data_dir)) == []
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_who_asks_is_told_when_a_run_starts(experiment: Experiment, run_in: Run, tmp_path: Path) -> None:
    """Once, before its first round, with the rounds done before; not where nothing is left to do."""
    told: list[Any] = []

    def start(named: Experiment, done: int) -> None:
        told.append((named.name, named.rounds, done))
        assert len(RunFolder(tmp_path / "run").records()) == done

    two = experiment.with_(name="run", rounds=2)
    run_in(two, tmp_path, on_start=start)
    run_in(two, tmp_path, resume=True, on_start=start)
    run_in(two.with_(rounds=3), tmp_path, resume=True, on_start=start)
    assert told == [("run", 2, 0), ("run", 3, 2)]
    with pytest.raises(VHLError):  # it exists
        run_in(two, tmp_path, on_start=start)
    assert len(told) == 2


def test_an_existing_run_is_not_overwritten(
    experiment: Experiment, finished: Path, content: Content, complains: Any
) -> None:
    before = content(finished)
    with complains(finished, "--resume", "name="):
        list(Session(experiment, finished.parent))
    with complains(
        finished,
        "was begun with model.width = 8, not 4; choose another by name=NAME",
        f"vhl run {finished}",
    ):
        list(Session(experiment.with_(model={"width": 4}), finished.parent))
    assert content(finished) == before


@pytest.mark.parametrize(
    ("settings", "key", "old", "new"),
    [
        ({"training": {"lr": 0.5}}, "training.lr", "0.03", "0.5"),
        ({"algorithm": "fedavg"}, "algorithm.name", "scaffold", "fedavg"),
        ({"algorithm": {"divisor": "accumulated"}}, "algorithm.divisor", "steps", "accumulated"),
        ({"data": {"size": 16}}, "data.size", "unset", "16"),
        ({"seeds": {"batches": 7}}, "seeds.batches", "0", "7"),
        ({"evaluate_every": 2}, "evaluate_every", "1", "2"),
    ],
)
def test_a_run_is_not_continued_as_another(
    experiment: Experiment,
    finished: Path,
    content: Content,
    complains: Any,
    settings: dict[str, Any],
    key: str,
    old: str,
    new: str,
) -> None:
    before = content(finished)
    with complains(finished, f"{key} = {old}, not {new}"):
        list(Session(experiment.with_(**settings), finished.parent, resume=True))
    assert content(finished) == before


def test_a_run_is_not_continued_on_other_images(
    experiment: Experiment, run_in: Run, tmp_path: Path, complains: Any
) -> None:
    arrays = dict(np.load(experiment.data.path))
    file = tmp_path / "mine.npz"
    np.savez(file, **arrays)
    own = experiment.with_(data={"path": str(file)}, rounds=1)
    run = run_in(own, tmp_path)
    list(Session(own.with_(rounds=2), str(tmp_path), resume=True))
    np.savez(file, **{**arrays, "images": arrays["images"][::-1]})
    with complains(run, "training images are others than when"):
        list(Session(own.with_(rounds=3), tmp_path, resume=True))
    assert len(RunFolder(run).records()) == 2


def test_a_run_cannot_be_made_shorter(
    experiment: Experiment, finished: Path, content: Content, complains: Any
) -> None:
    before = content(finished)
    with complains("5 rounds", "rounds = 4"):
        list(Session(experiment.with_(rounds=4), finished.parent, resume=True))
    assert content(finished) == before


def test_how_often_to_checkpoint_may_change(
    experiment: Experiment, finished: Path, run_in: Run, content: Content, tmp_path: Path
) -> None:
    run_in(experiment.with_(rounds=2), tmp_path)
    run_in(experiment.with_(rounds=4, checkpoint_every=1), tmp_path, resume=True)
    assert content(run_in(experiment, tmp_path, resume=True)) == content(finished)


def test_which_models_are_kept_may_change(experiment: Experiment, run_in: Run, tmp_path: Path) -> None:
    run_in(experiment.with_(rounds=3, keep_at=[2], features_at=[]), tmp_path)
    run = run_in(experiment.with_(keep_at=[2, 4]), tmp_path, resume=True)
    assert kept_rounds(RunFolder(run)) == [2, 4]


def test_checkpoints_take_a_small_share_of_the_time(
    experiment: Experiment, data_dir: Path, tmp_path: Path, slow_saving: list[float]
) -> None:
    """A round takes 10 seconds and a checkpoint 1, which is worth 33 of them."""
    session = Session(experiment.with_(rounds=10, checkpoint_every=None), tmp_path, data_dir=data_dir)
    saved = []
    for _ in session:
        manifest = session.folder.manifest()
        saved.append(0 if manifest is None else manifest["round"])
        slow_saving[0] += 10.0
    assert saved == [1, 1, 1, 1, 5, 5, 5, 5, 9, 10]


# --- stopping ------------------------------------------------------------------------------------------


def test_leaving_the_loop_saves_the_last_round(
    experiment: Experiment, finished: Path, run_in: Run, content: Content, data_dir: Path, tmp_path: Path
) -> None:
    session = Session(experiment, tmp_path, data_dir=data_dir)
    for record in session:
        if record.round == 3:  # no round of a checkpoint
            break
    manifest = session.folder.manifest()
    assert manifest is not None and manifest["round"] == 3
    assert content(run_in(experiment, tmp_path, resume=True)) == content(finished)


@pytest.mark.parametrize(
    ("owner", "method", "call", "late"),
    [
        (RunFolder, "begin", 1, False),
        (RunFolder, "cut_back", 1, True),
        (Simulation, "_land", 4, False),
        (Simulation, "_land", 4, True),
        (RunFolder, "save_features", 1, True),
        (RunFolder, "save_model", 4, False),
        (RunFolder, "save_model", 4, True),
        (RunFolder, "append", 4, False),
        (RunFolder, "append", 4, True),
        (RunFolder, "save_state", 2, False),
        (RunFolder, "save_state", 2, True),
    ],
)
def test_stopped_anywhere_it_goes_on_to_the_same_end(
    experiment: Experiment,
    finished: Path,
    run_in: Run,
    content: Content,
    data_dir: Path,
    tmp_path: Path,
    stopped: Any,
    owner: type,
    method: str,
    call: int,
    late: bool,
) -> None:
    """Ctrl-C is a KeyboardInterrupt at any line."""
    with stopped(owner, method, call, late=late):
        list(Session(experiment, tmp_path, data_dir=data_dir))
    if method in ("_land", "append"):  # then the last whole round is what counts
        manifest = RunFolder(tmp_path / "tiny").manifest()
        assert manifest is not None and manifest["round"] == 3
    assert content(run_in(experiment, tmp_path, resume=True)) == content(finished)


def test_an_error_in_training_keeps_the_last_good_round(
    experiment: Experiment, data_dir: Path, tmp_path: Path, stopped: Any
) -> None:
    session = Session(experiment, tmp_path, data_dir=data_dir)
    with stopped(Simulation, "_land", 4, VHLError("Round 4: every client's model became infinite.")):
        list(session)
    manifest = session.folder.manifest()
    assert manifest is not None and manifest["round"] == 3


def test_what_cannot_begin_leaves_nothing_behind(experiment: Experiment, tmp_path: Path) -> None:
    session = Session(experiment.with_(data="npz:nowhere.npz"), tmp_path)
    with pytest.raises(VHLError, match=r"nowhere\.npz"):
        list(session)
    assert list(tmp_path.iterdir()) == []


# --- two at once ---------------------------------------------------------------------------------------


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[None]:
    """Another process that runs in the folder ``tiny``."""
    ready, say_ready = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        folder = RunFolder(tmp_path / "tiny")
        folder.acquire()
        os.write(say_ready, b"!")
        os.read(wait, 1)
        os._exit(0)
    os.read(ready, 1)
    yield
    os.write(go, b"!")
    os.waitpid(child, 0)


@pytest.mark.usefixtures("other_process")
def test_a_second_process_is_refused(experiment: Experiment, tmp_path: Path, complains: Any) -> None:
    with complains("Another process", tmp_path / "tiny"):
        list(Session(experiment, tmp_path, resume=True))
    assert [file.name for file in (tmp_path / "tiny").iterdir()] == [".lock"]


def test_the_folder_is_held_until_the_run_ends(
    experiment: Experiment, data_dir: Path, tmp_path: Path, complains: Any
) -> None:
    first = iter(Session(experiment, tmp_path, data_dir=data_dir))
    next(first)
    with complains("Another process"):
        list(Session(experiment, tmp_path, resume=True, data_dir=data_dir))
    first.close()
    list(Session(experiment, tmp_path, resume=True, data_dir=data_dir))


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        folder = RunFolder(tmp_path / "tiny")
        folder.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    RunFolder(tmp_path / "tiny").acquire()


# --- disks ---------------------------------------------------------------------------------------------


class _FullFile:
    """A file on a full disk: the first half of what is written fits."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> _FullFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: Any) -> None:
        self.file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "victim",
    [
        "experiment.toml",
        "round-000003",
        "best-000004",
        "metrics.jsonl",
        "server-000004",
        "client-",
        "manifest.json",
    ],
)
def test_a_full_disk(
    experiment: Experiment,
    finished: Path,
    run_in: Run,
    content: Content,
    complains: Any,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: str,
) -> None:
    """From the first write of ``victim`` on nothing fits; after room was made the run goes on."""
    open_, full = Path.open, []

    def open_on_full_disk(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        writes = mode in ("wb", "a")
        if writes and path.name.startswith(victim):
            full.append(path)
        file = open_(path, mode, *arguments, **options)
        return _FullFile(file) if writes and full else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_on_full_disk)
        with complains("No space left on device", "--resume"):
            list(Session(experiment, tmp_path, data_dir=data_dir))
    assert full and not list(tmp_path.rglob("*.part"))
    folder = RunFolder(tmp_path / "tiny")
    if (manifest := folder.manifest()) is not None:
        assert folder.load_state(manifest).round == manifest["round"] == 2
    assert content(run_in(experiment, tmp_path, resume=True)) == content(finished)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system of its own, where the machine allows that."""
    place = tmp_path / "mounted"

    def mounted(options: str) -> Path:
        place.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("only root may mount")
        return place

    yield mounted
    while os.path.ismount(place):
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full(
    experiment: Experiment,
    finished: Path,
    run_in: Run,
    content: Content,
    complains: Any,
    mount: Callable[[str], Path],
) -> None:
    needed = sum(file.stat().st_size for file in finished.rglob("*") if file.is_file())
    place = mount(f"size={needed // 2}")
    with complains("No space left on device"):
        run_in(experiment, place)
    mount("remount,size=100m")
    assert content(run_in(experiment, place, resume=True)) == content(finished)


def test_a_folder_that_became_read_only(
    experiment: Experiment,
    finished: Path,
    run_in: Run,
    content: Content,
    complains: Any,
    mount: Callable[[str], Path],
) -> None:
    place = mount("size=100m")
    folder = run_in(experiment.with_(rounds=2), place)
    before = content(folder)
    mount("remount,ro")
    with complains("Read-only file system", folder):
        run_in(experiment, place, resume=True)
    assert content(folder) == before
    mount("remount,rw")
    assert content(run_in(experiment, place, resume=True)) == content(finished)


def test_a_place_where_no_folder_can_be(experiment: Experiment, tmp_path: Path, complains: Any) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with complains(tmp_path / "file", "cannot be written"):
        list(Session(experiment, tmp_path / "file"))
