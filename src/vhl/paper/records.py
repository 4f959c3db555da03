"""Runs of the paper's rows, and the records of them that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vhl.experiment import Experiment
from vhl.runs.digest import Digest
from vhl.runs.folder import RunFolder


@dataclass(frozen=True)
class Records:
    """Digests of run folders, one file a run."""

    runs: Path
    results: Path

    def has(self, experiment: Experiment) -> bool:
        """Whether the run is through; what there is of it is kept."""
        run = RunFolder(self.runs / experiment.name)
        if run.exists:
            self.keep(run)
        return run.exists and len(run.records()) >= experiment.rounds

    def keep(self, run: RunFolder) -> None:
        """Write the run's record, unless a longer one is there: from another machine, perhaps."""
        done, file = len(run.records()), self.results / f"{run.path.name}.json"
        if done and not (file.exists() and len(Digest.read(file).records) > done):
            Digest.of(run).write(file)
