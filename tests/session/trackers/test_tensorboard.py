"""Read back with TensorBoard's own reader."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorboard", reason="the extra vhl[tensorboard] is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.session.trackers.base import parameters
from vhl.session.trackers.tensorboard import TensorBoard

Run = Callable[..., RunFolder]
Numbers = dict[str, dict[int, float]]
Expected = Callable[[RunFolder], Numbers]


def read(run: RunFolder) -> EventAccumulator:
    accumulator = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def scalars(run: RunFolder) -> Numbers:
    accumulator = read(run)
    found = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}
    for events in found.values():
        assert len({event.step for event in events}) == len(events), "a round appears twice"
    return {tag: {event.step: event.value for event in events} for tag, events in found.items()}


def single(numbers: Numbers) -> Numbers:
    """What is left of numbers in single precision, in which TensorBoard keeps them."""
    return {
        name: {round_: float(np.float32(value)) for round_, value in of_round.items()}
        for name, of_round in numbers.items()
    }


def test_every_number_of_every_round(experiment: Experiment, run_in: Run, expected: Expected) -> None:
    run = run_in(experiment, trackers=[TensorBoard()])
    assert scalars(run) == single(expected(run))


@pytest.mark.parametrize("how", [{"stop": 3}, {"crash": 3}, {"crash": 1}], ids=str)
def test_a_run_that_is_continued(
    how: dict[str, int], experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    run = run_in(experiment, trackers=[TensorBoard()], **how)
    assert list(scalars(run)["drift"]) == list(range(1, 1 + next(iter(how.values()))))
    run_in(experiment, resume=True, trackers=[TensorBoard()])
    assert scalars(run) == single(expected(run))
    sizes = [file.stat().st_size for file in (run.path / "tensorboard").iterdir()]
    assert len(sizes) == 2 and min(sizes) == 0  # whoever reads files one by one finds no round twice either


def test_a_run_that_is_killed(
    killed: RunFolder, experiment: Experiment, run_in: Run, expected: Expected
) -> None:
    assert scalars(killed) == single(expected(killed))
    run_in(experiment, resume=True, trackers=[TensorBoard()])
    assert scalars(killed) == single(expected(killed))


def test_one_who_watches_sees_no_round_twice(experiment: Experiment, run_in: Run, expected: Expected) -> None:
    """An open TensorBoard keeps what it has read of a file that is empty now."""
    run = run_in(experiment, crash=3, trackers=[TensorBoard()])
    watching = read(run)
    assert [event.step for event in watching.Scalars("drift")] == [1, 2, 3]
    run_in(experiment, resume=True, trackers=[TensorBoard()])
    watching.Reload()
    assert [event.step for event in watching.Scalars("drift")] == [1, 2, 3, 4, 5]
    seconds = [float(np.float32(value)) for value in expected(run)["seconds"].values()]
    assert [event.value for event in watching.Scalars("seconds")] == seconds


def test_numbers_that_are_none(experiment: Experiment, tmp_path: Path, run_in: Run) -> None:
    run = run_in(experiment, stop=1)
    tracker = TensorBoard()
    tracker.begin(run, experiment)
    tracker.log(1, {"inf": float("inf"), "nan": float("nan"), "huge": 1e300}, 0.0)
    tracker.end(finished=True)
    found = scalars(run)
    assert found["inf"][1] == float("inf") == found["huge"][1] and np.isnan(found["nan"][1])


def test_the_experiment(experiment: Experiment, run_in: Run, hostile: str) -> None:
    experiment = experiment.with_(name=hostile)
    run = run_in(experiment, stop=1, trackers=[TensorBoard()])
    assert run.path.name == hostile
    accumulator = read(run)
    (text,) = accumulator.Tensors("experiment")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert all(line.startswith("    ") for line in lines)  # code in Markdown: nothing of it is markup
    assert [line[4:] for line in lines] == experiment.toml().splitlines()
    content = accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    found = {key: getattr(value, value.WhichOneof("kind")) for key, value in settings.items()}
    assert found == parameters(experiment)


def test_a_full_disk(
    experiment: Experiment,
    run_in: Run,
    expected: Expected,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run goes on; continued with space, it has everything."""
    write, notes = RecordWriter.write, list[str]()

    def full(writer: Any, data: bytes) -> None:
        if b"drift" in data and len(notes) == 0 and next(rounds) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writer, data)

    rounds = iter(range(1, 9))
    monkeypatch.setattr(RecordWriter, "write", full)
    run = run_in(experiment, trackers=[TensorBoard()], on_note=notes.append)
    assert len(run.records()) == 5 and len(notes) == 1 and "No space left on device" in notes[0]
    assert list(scalars(run)["drift"]) == [1, 2]
    run_in(experiment, resume=True, trackers=[TensorBoard()])
    assert scalars(run) == single(expected(run))


def test_a_place_that_is_taken(experiment: Experiment, run_in: Run, tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "runs" / "tiny" / "tensorboard").write_text("a file of the user's", encoding="utf-8")
    run = run_in(experiment, trackers=[TensorBoard()], on_note=notes.append)
    assert len(run.records()) == 5 and len(notes) == 1 and "tensorboard" in notes[0]
    assert (run.path / "tensorboard").read_text(encoding="utf-8") == "a file of the user's"
