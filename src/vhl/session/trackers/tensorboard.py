"""TensorBoard."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from vhl.experiment import Experiment
from vhl.runs.folder import RunFolder
from vhl.session.trackers.base import Tracker, need, parameters


class TensorBoard(Tracker):
    """An event file in the run folder, under ``tensorboard/``; ``tensorboard --logdir runs`` shows it.

    It holds numbers in single precision. Written with TensorBoard's own parts, but round by round: its usual
    writer does so in a thread, where a full disk would go unnoticed.
    """

    def __init__(self) -> None:
        need("tensorboard", "tensorboard")

    def begin(self, run: RunFolder, experiment: Experiment) -> int:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = run.path / "tensorboard"
        folder.mkdir(exist_ok=True)
        older = list(folder.glob("events.out.tfevents.*"))
        self._writer = RecordWriter((folder / f"events.out.tfevents.{time.time():.6f}").open("xb"))
        now = time.time()
        self._write(now, file_version="brain.Event:2")
        # A TensorBoard that is open forgets what it has read: the new file has all rounds from the first.
        self._write(now, session_log=SessionLog(status=SessionLog.START))
        code = "".join(f"    {line}\n" for line in experiment.toml().splitlines())  # in Markdown
        self._write(now, summary=text_pb("experiment", code))
        self._write(now, summary=hparams_pb(parameters(experiment), trial_id=experiment.name))
        for file in older:
            os.truncate(file, 0)  # not removed: one who watches would wait for it to come back
        return 0

    def log(self, round_: int, metrics: Mapping[str, float], when: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(when, step=round_, summary=Summary(value=values))

    def end(self, finished: bool) -> None:
        self._writer.close()

    def _write(self, when: float, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=when, **content).SerializeToString())
        self._writer.flush()
