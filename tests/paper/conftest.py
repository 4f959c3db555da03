"""Runs that never were: digests of the paper's rows, with curves made up by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vhl.engine.record import Record
from vhl.paper.rows import rows
from vhl.runs.digest import Digest


@pytest.fixture(scope="session")
def digest() -> Callable[..., Digest]:
    """A run of a row with an accuracy a round and, unless said otherwise, 10 images and a drift of 1 each."""

    def make(
        name: str,
        accuracies: Sequence[float | None],
        seed: int = 0,
        *,
        profile: Any = "paper",
        virtual: Any = "stylegan",
        drift: float = 1.0,
        samples: int = 10,
        **settings: Any,
    ) -> Digest:
        experiment = rows()[name].experiment(profile, virtual)
        seeds = dict.fromkeys(("model", "sampling", "batches"), seed)
        records = tuple(
            Record(
                round=number,
                accuracy=accuracy,
                loss={},
                train_accuracy=None,
                drift=drift,
                learning_rate=0.1,
                samples=samples,
                compute=1.0,
                bytes=100,
                clients=[],
                seconds=1.0,
            )
            for number, accuracy in enumerate(accuracies, 1)
        )
        changed = experiment.with_(rounds=len(accuracies), seeds=seeds, **settings)
        return Digest(changed, records, {"gpu": "none"}, 0.5)

    return make
