"""Running an experiment in its folder: records, models and checkpoints are saved as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vhl.algorithms.base import FINAL, Server
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.checks import notes
from vhl.rounds.federation import Federation
from vhl.rounds.local import Shared, local
from vhl.rounds.setup import Setup
from vhl.rounds.simulation import Simulation
from vhl.rounds.snapshot import ACCURACIES
from vhl.runs.checkpoint import State
from vhl.runs.environment import environment
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record
from vhl.runs.resume import another_version, check_same
from vhl.session.trackers.base import Follower, Tracker
from vhl.virtual.base import Progress
from vhl.virtual.sets import picture

_SHARE_OF_SAVING = 0.03
"""Of the time of all runs side by side; a kill then loses about thirty times what their checkpoints take."""


def default_name(experiment: Experiment) -> str:
    """A run folder's name made from its parts: ``digits-lda-fedavg-vhl-seed0``."""
    parts = [getattr(experiment, part).name for part in ("data", "partition", "algorithm", "objective")]
    words = [part.split(":")[-1] for part in parts]  # of my_method.py:MyMethod the class alone
    return "-".join([*words, f"seed{experiment.seeds.batches}"])


class Session:
    """One run in its folder; iterate it to run the rounds that are left.

    Its ``trackers``, such as :class:`vhl.session.trackers.tensorboard.TensorBoard`, are told of every round.
    Several sessions with something ``shared`` run side by side; see :func:`vhl.session.together.together`.
    """

    def __init__(
        self,
        experiment: Experiment,
        runs: Path | str,
        *,
        resume: bool = False,
        data_dir: Path | None = None,
        on_progress: Progress | None = None,
        on_note: Callable[[str], None] = lambda note: None,
        on_start: Callable[[Experiment, int], None] = lambda experiment, done: None,
        shared: Shared | None = None,
        trackers: Sequence[Tracker] = (),
        federate: Callable[[Experiment], Federation] | None = None,
    ) -> None:
        """``on_start`` is told when everything is ready how many rounds were done before; not if all were.

        ``federate`` says who its clients are, where they are not on this machine.
        """
        name = experiment.name or default_name(experiment)
        self.experiment = experiment.with_(name=name)
        self.folder = RunFolder(Path(runs) / name)
        self._resume, self._data_dir, self._shared = resume, data_dir, shared
        self._on_progress, self._on_note, self._on_start = on_progress, on_note, on_start
        self._followers = [Follower(tracker, on_note) for tracker in trackers]
        self._federate = federate or self._local
        self.best: dict[str, Any] | None = None
        self.side_by_side = 1
        """Runs in this process, which all wait while one is saved."""
        self._saved_round = 0
        self._saved_at = self._saving_takes = 0.0

    def __iter__(self) -> Generator[Record]:
        for record in self.steps():
            if record is not None:
                yield record

    def steps(self) -> Generator[Record | None]:
        """The same, but ``None`` comes whenever some work was done and no round is through."""
        self.folder.acquire()
        try:
            yield from self._followed(self._prepare())
        finally:
            self.folder.release()

    def _followed(self, simulation: Simulation) -> Iterator[Record | None]:
        try:
            for follower in self._followers:
                follower.begin(self.folder, self.experiment)
            yield from self._run(simulation)
        finally:
            for follower in self._followers:
                follower.end(finished=self._saved_round == self.experiment.rounds)

    def _prepare(self) -> Simulation:
        manifest = self._earlier()
        federation = self._federate(self.experiment)
        setup = federation.setup
        for note in notes(self.experiment, setup.data, setup.blueprint):
            self._on_note(note)
        state = None
        if manifest is not None:
            state = to_device(self.folder.load_state(manifest), setup.precision.device)
            self.best, self._saved_round = manifest["best"], manifest["round"]
            self._check_not_ended(state)
        simulation = Simulation(self.experiment, federation=federation, state=state, look_at_end=True)
        # Only now, when nothing is left to refuse: what a mistake leaves behind would be in the way.
        if not self.folder.exists:
            if setup.virtual is not None:
                self.folder.save_picture(picture(setup.virtual.images))
            self.folder.begin(self.experiment, setup.describe_data(), environment())
        else:
            self._check_images(setup)
            self.folder.extend(self.experiment)
        if manifest is not None:
            self.folder.forget_all_but(manifest)
        self.folder.cut_back(self._saved_round)
        return simulation

    def _check_not_ended(self, state: State) -> None:
        """The record of a round after which the classifier was retrained is that of an end."""
        algorithm, retrained = self.experiment.algorithm, FINAL in state.server.state
        if algorithm.ends and retrained and state.round < self.experiment.rounds:
            raise VHLError(
                f"{self.folder.path} ended with round {state.round}, after which {algorithm.name} retrained "
                "the classifier: it cannot get more rounds; choose another name."
            )

    def _check_images(self, setup: Setup) -> None:
        """A file or folder may hold others by now."""
        now = setup.data.fingerprint
        if self.folder.data().get("fingerprint", now) != now:
            raise VHLError(
                f"The training images are others than when {self.folder.path} was begun; put them back, or "
                "choose another name."
            )

    def _local(self, experiment: Experiment) -> Federation:
        return local(experiment, self._data_dir, self._on_progress, self._shared, self._on_note)

    def _earlier(self) -> dict[str, Any] | None:
        """The checkpoint to continue from, if the folder holds this run already."""
        if not self.folder.exists:
            return None
        check_same(self.folder, self.experiment)  # first: --resume is no advice for another experiment
        if not self._resume:
            raise VHLError(
                f"{self.folder.path} exists already; --resume continues it, name=NAME begins another."
            )
        if self.folder.rounds < self.experiment.rounds and (note := another_version(self.folder)):
            self._on_note(note)
        return self.folder.manifest()

    def _run(self, simulation: Simulation) -> Iterator[Record | None]:
        done = simulation.state
        try:
            if done.round < self.experiment.rounds:
                self._on_start(self.experiment, done.round)
            while done.round < self.experiment.rounds:
                record = simulation.poll()
                if record is None:
                    yield None
                    continue
                record = record.model_copy(update={"side_by_side": self.side_by_side})
                self._keep(record, simulation)
                self.folder.append(record)
                for follower in self._followers:
                    follower.record(record)
                done = simulation.state
                if self._is_due(done.round):
                    self._checkpoint(done)
                yield record
        except (KeyboardInterrupt, VHLError, GeneratorExit):
            if done.round > self._saved_round:
                self._checkpoint(done)
            raise
        finally:
            simulation.close()

    def _keep(self, record: Record, simulation: Simulation) -> None:
        """Save the model and the features of rounds that were asked for, and the best model so far."""
        if simulation.snapshot is not None and record.round in self.experiment.features_at:
            self.folder.save_features(record.round, simulation.snapshot)
        if simulation.snapshot is not None and record.round == self.experiment.rounds:
            self.folder.save_last({name: simulation.snapshot[name] for name in ACCURACIES})
        if record.round in self.experiment.keep_at:
            self.folder.save_model(f"round-{record.round:06d}", simulation.named_tensors())
        accuracy = record.validation_accuracy
        if accuracy is not None and (self.best is None or accuracy > self.best["validation_accuracy"]):
            file = f"best-{record.round:06d}"
            self.folder.save_model(file, simulation.named_tensors())
            self.best = {
                "round": record.round,
                "validation_accuracy": accuracy,
                "file": f"{file}.safetensors",
            }

    def _is_due(self, round_: int) -> bool:
        """Whether to save now: clients' vectors can be gigabytes, and a round less than a second."""
        every = self.experiment.checkpoint_every
        if round_ == self.experiment.rounds:
            return True
        if every is not None:
            return round_ % every == 0
        all_take = self._saving_takes * self.side_by_side
        return time.monotonic() - self._saved_at >= all_take / _SHARE_OF_SAVING

    def _checkpoint(self, state: State) -> None:
        begin = time.monotonic()
        self.folder.save_state(state, self.best)
        self._saved_round, self._saved_at = state.round, time.monotonic()
        self._saving_takes = self._saved_at - begin


def to_device(state: State, device: torch.device) -> State:
    """The state where rounds are computed; what clients keep comes there when it is needed."""

    def move(vector: Tensor) -> Tensor:
        return vector.to(device)

    server = state.server
    own = {name: move(vector) for name, vector in server.state.items()}
    return replace(state, server=Server(move(server.parameters), move(server.buffers), own))
