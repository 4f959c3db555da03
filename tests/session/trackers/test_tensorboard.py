"""Read back with TensorBoard's own reader."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tracker_tools import TensorBoardTool

pytest.importorskip("tensorboard", reason="the extra vhl[tensorboard] is not installed")

from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter

from vhl.session.trackers.base import parameters
from vhl.session.trackers.tensorboard import TensorBoard

TOOL = TensorBoardTool()


def test_one_who_watches_sees_no_round_twice(experiment, run_in, expected):
    """An open TensorBoard keeps what it has read of a file that is empty now."""
    run = run_in(experiment, crash=3, trackers=[TensorBoard()])
    watching = TOOL.read(run)
    assert [event.step for event in watching.Scalars("drift")] == [1, 2, 3]
    run_in(experiment, resume=True, trackers=[TensorBoard()])
    watching.Reload()
    assert [event.step for event in watching.Scalars("drift")] == [1, 2, 3, 4, 5]
    seconds = [float(np.float32(value)) for value in expected(run)["seconds"].values()]
    assert [event.value for event in watching.Scalars("seconds")] == seconds


def test_the_experiment(experiment, run_in, hostile):
    experiment = experiment.with_(name=hostile)
    run = run_in(experiment, stop=1, trackers=[TensorBoard()])
    assert run.path.name == hostile
    accumulator = TOOL.read(run)
    (text,) = accumulator.Tensors("experiment")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert all(line.startswith("    ") for line in lines)  # code in Markdown: nothing of it is markup
    assert [line[4:] for line in lines] == experiment.toml().splitlines()
    content = accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    found = {key: getattr(value, value.WhichOneof("kind")) for key, value in settings.items()}
    assert found == parameters(experiment)


def test_a_full_disk(experiment, run_in, expected, monkeypatch):
    """The run goes on; continued with space, it has everything."""
    write, notes = RecordWriter.write, list[str]()

    def full(writer, data):
        if b"drift" in data and len(notes) == 0 and next(rounds) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writer, data)

    rounds = iter(range(1, 9))
    monkeypatch.setattr(RecordWriter, "write", full)
    run = run_in(experiment, trackers=[TensorBoard()], on_note=notes.append)
    assert len(run.records()) == 5 and len(notes) == 1 and "No space left on device" in notes[0]
    assert list(TOOL.numbers(run)["drift"]) == [1, 2]
    run_in(experiment, resume=True, trackers=[TensorBoard()])
    assert TOOL.numbers(run) == TOOL.keeps(expected(run))


def test_a_place_that_is_taken(experiment, run_in, tmp_path):
    notes: list[str] = []
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "runs" / "tiny" / "tensorboard").write_text("a file of the user's", encoding="utf-8")
    run = run_in(experiment, trackers=[TensorBoard()], on_note=notes.append)
    assert len(run.records()) == 5 and len(notes) == 1 and "tensorboard" in notes[0]
    assert (run.path / "tensorboard").read_text(encoding="utf-8") == "a file of the user's"
