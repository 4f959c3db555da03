"""Records of run folders: which are written, and what stays in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vhl.experiment import Experiment
from vhl.paper.records import Records
from vhl.runs.digest import Digest
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record


def test_theory_stays_and_a_longer_record_too(a_record: Callable[..., Record], tmp_path: Path) -> None:
    run, kept = RunFolder(tmp_path / "run"), Records(tmp_path, tmp_path / "results")
    run.begin(Experiment(), {"heterogeneity": 0.5}, {"gpu": None})
    for number in (1, 2):
        run.append(a_record(number, 0.1))
    file = tmp_path / "results" / "run.json"
    assert kept.keep(run) and Digest.read(file).theory is None
    theory = {"virtual": {"name": "noise"}, "terms": []}
    replace(Digest.read(file), theory=theory).write(file)
    assert kept.keep(run) and Digest.read(file).theory == theory
    longer = Digest.read(file)
    replace(longer, records=(*longer.records, longer.records[-1].model_copy(update={"round": 3}))).write(file)
    assert not kept.keep(run) and len(Digest.read(file).records) == 3


def test_theory_goes_when_another_run_takes_the_place(
    a_record: Callable[..., Record], tmp_path: Path
) -> None:
    """On a GPU the same experiment gives other models."""
    kept, file = Records(tmp_path, tmp_path / "results"), tmp_path / "results" / "run.json"

    def keep(place: str, *accuracies: float) -> None:
        run = RunFolder(tmp_path / place / "run")
        if not run.exists:
            run.begin(Experiment(), {"heterogeneity": 0.5}, {"gpu": None})
        for accuracy in accuracies:
            run.append(a_record(len(run.records()) + 1, accuracy))
        assert kept.keep(run)

    keep("one", 0.1)
    replace(Digest.read(file), theory={"terms": []}).write(file)
    keep("one", 0.3)
    assert Digest.read(file).theory == {"terms": []}
    keep("another", 0.2, 0.3)
    assert Digest.read(file).theory is None
