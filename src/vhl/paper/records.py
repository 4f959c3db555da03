"""Runs of the paper's rows, and the records of them that are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
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

    def keep(self, run: RunFolder) -> bool:
        """Write the run's record, unless a longer one is there: from another machine, perhaps.

        What `vhl theory` measured stays in it where this is the same run, gone on.
        """
        file = self.results / f"{run.path.name}.json"
        before = Digest.read(file) if file.exists() else None
        done = len(run.records())
        if not done or (before is not None and len(before.records) > done):
            return False
        found = Digest.of(run)
        if before is not None and found.theory is None and _goes_on(before, found):
            found = replace(found, theory=before.theory)
        found.write(file)
        return True


def _goes_on(before: Digest, after: Digest) -> bool:
    """Whether a run began as another did; one that is repeated on a GPU does not."""
    first, second = ([record.accuracy for record in run.records] for run in (before, after))
    return second[: len(first)] == first
