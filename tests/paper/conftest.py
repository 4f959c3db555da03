"""Runs that never were: digests of the paper's rows, with curves made up by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vhl.paper.rows import rows
from vhl.runs.digest import Digest
from vhl.runs.record import Record


@pytest.fixture(scope="session")
def digest(a_record: Callable[..., Record]) -> Callable[..., Digest]:
    """A run of a row with an accuracy a round and, unless said otherwise, 10 images and a drift of 1 each."""

    def make(
        name: str,
        accuracies: Sequence[float | None],
        seed: int = 0,
        *,
        profile: Any = "paper",
        virtual: Any = "stylegan",
        drift: float | Sequence[float] = 1.0,
        samples: int = 10,
        compute: float = 1.0,
        virtual_accuracy: Sequence[float | None] | None = None,
        **settings: Any,
    ) -> Digest:
        experiment = rows()[name].experiment(profile, virtual)
        seeds = dict.fromkeys(("model", "sampling", "batches"), seed)
        drifts = [drift] * len(accuracies) if isinstance(drift, float | int) else drift
        learnt = virtual_accuracy or [None] * len(accuracies)
        rounds = enumerate(zip(accuracies, drifts, learnt, strict=True), 1)
        records = tuple(
            a_record(
                number,
                accuracy,
                drift=own,
                virtual_accuracy=known,
                samples=samples,
                compute=compute,
                bytes=100,
                seconds=1.0,
                clients=[],
            )
            for number, (accuracy, own, known) in rounds
        )
        changed = experiment.with_(rounds=len(accuracies), seeds=seeds, **settings)
        return Digest(changed, records, {"gpu": "none"}, 0.5)

    return make
