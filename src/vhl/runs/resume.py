"""Whether a run may go on: as the same experiment, with the same files of the user's own."""

from __future__ import annotations

import shlex

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.files import read_json
from vhl.runs.folder import RunFolder
from vhl.runs.identity import LENGTH, UNCOUNTED, all_but
from vhl.runs.origin import Origin
from vhl.version import __version__


def check_same(run: RunFolder, experiment: Experiment) -> None:
    """Refuse to continue a run as something else."""
    old, new = (all_but(one, UNCOUNTED | LENGTH) for one in (run.experiment(), experiment))
    # Names first: another algorithm has other options, and those are not what the user changed.
    for key in sorted(old.keys() | new.keys(), key=lambda k: (not k.endswith(".name"), k)):
        if old.get(key) != new.get(key):
            was, now = ("unset" if found.get(key) is None else found[key] for found in (old, new))
            raise VHLError(
                f"{run.path} was begun with {key} = {was}, not {now}; choose another by name=NAME, or go on "
                f"with `vhl run {shlex.quote(str(run.path))} --resume`."
            )
    origin = Origin.read(run.path / "origin.json")
    if origin is not None and (place := origin.changed(Origin.of(experiment))) is not None:
        raise VHLError(
            f"{place} has changed since {run.path} was begun; put it back, or choose another with name=NAME."
        )
    if experiment.rounds < run.rounds:
        raise VHLError(
            f"{run.path} has done {run.rounds} rounds, more than rounds = {experiment.rounds}; "
            "choose another name."
        )


def another_version(run: RunFolder) -> str | None:
    """A sentence for who goes on with a run that another version of this package began."""
    begun = read_json(run.path / "environment.json").get("packages", {}).get("vhl", __version__)
    if begun == __version__:
        return None
    return (
        f"{run.path} was begun with vhl {begun}, and this is {__version__}: further rounds need not be "
        "those that it would have computed."
    )
