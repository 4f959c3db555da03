"""Who has what, what is taken for what, and the accuracy of each class and client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vhl.models.files import read_tensors
from vhl.report.figure import Bar, Bars, Figure, Heat, Numbers
from vhl.report.looks import Look
from vhl.report.shown import Method, Shown

MOST_CLIENTS = 200
"""In a figure of who has what."""
_SHARE = "test accuracy (%)"


def partitions(problems: Sequence[Shown]) -> Iterator[Figure]:
    """Training images of each class at each client, for each problem once: of a run that had it."""
    for number, run in enumerate(problems, 1):
        counts = np.array(run.data["counts"])
        shown = counts[:MOST_CLIENTS]
        panel = Heat(
            title=run.about,
            x="class",
            y="client: its training images",
            rows=[f"{run.client(client)}: {row.sum():,}" for client, row in enumerate(shown)],
            columns=run.data["classes"],
            counts=shown,
            of="{row} in all, {count} of {column}",
        )
        yield Figure(
            name=f"partition-{number}",
            title="Who has what",
            subtitle=_about(run.data, len(counts), counts.sum()),
            panels=[panel],
        )


def _about(data: Mapping[str, Any], clients: int, images: int) -> str:
    more = f" (shown: the first {MOST_CLIENTS})" if clients > MOST_CLIENTS else ""
    return (
        f"{clients:,} client{'s' if clients > 1 else ''}{more}, {images:,} training images, "
        f"{data['test_samples']:,} test images.\n"
        f"Heterogeneity {data['heterogeneity']:.2f}: mean distance of a client's class shares from "
        "those of all (0: alike, 1: nothing in common)."
    )


def classes(runs: Sequence[Shown], methods: Sequence[Method]) -> Iterator[Figure]:
    """Accuracy of each class, mean over seeds; a figure for each list of classes that runs have in common."""
    lists = dict.fromkeys(tuple(run.data["classes"]) for run in runs)
    for number, names in enumerate(lists, 1):
        of_these = [run for run in runs if tuple(run.data["classes"]) == names]
        bars = []
        for group, method in enumerate(methods):
            last = [_last_classes(run) for run in of_these if run.method == group]
            if found := [one for one in last if one is not None]:
                bars.append(Bar(method.label, method.look, _mean(found)))
        if bars:
            yield Figure(
                name="per-class" if number == 1 else f"per-class-{number}",
                title="Accuracy of the server's model on each class",
                subtitle="after the last evaluated round, mean over seeds",
                panels=[Bars(title=of_these[0].settings["data.name"], y=_SHARE, names=names, bars=bars)],
            )


def _last_classes(run: Shown) -> Sequence[float | None] | None:
    return next((r.per_class for r in reversed(run.records) if r.per_class is not None), None)


def _mean(found: Sequence[Sequence[float | None]]) -> Numbers:
    """In percent; a class that no run was tested on has none."""
    values = 100 * np.array(found, dtype=float)
    known = np.isfinite(values)
    sums, counts = np.where(known, values, 0).sum(0), known.sum(0)
    means: Numbers = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return means


def last_rounds(runs: Sequence[Shown], methods: Sequence[Method]) -> Iterator[Figure]:
    """For each run what the server's model takes for what, and the accuracy of every client's model."""
    for number, run in enumerate(runs, 1):
        file = run.folder.path / "last.safetensors"
        if file.is_file():
            tensors, _ = read_tensors(file)
            own = {name: tensor.numpy() for name, tensor in tensors.items()}
            server = [record.accuracy for record in run.records if record.accuracy is not None][-1]
            yield Figure(
                name=f"run-{number}-{_word(run.name)}",
                title=f"{run.name} after its last round",
                panels=[
                    _confusion(run.data["classes"], own["confusion"]),
                    _clients(run, own["clients"], own["client_accuracy"], server, methods[run.method].look),
                ],
            )


def _confusion(names: Sequence[str], counts: Any) -> Heat:
    """Outputs for virtual classes count together."""
    columns, natural = list(names), len(names)
    if counts.shape[1] > natural:
        counts = np.column_stack([counts[:, :natural], counts[:, natural:].sum(1)])
        columns.append("a virtual class")
    return Heat(
        title="Test images of each class (rows) and what the server's model takes them for (columns)",
        x="taken for",
        y="class",
        rows=names,
        columns=columns,
        counts=counts,
        of="{row} taken for {column}: {count}",
    )


def _clients(run: Shown, clients: Any, accuracy: Any, server: float, look: Look) -> Bars:
    names = [*(run.client(int(client)) for client in clients), "server"]
    values = 100 * np.array([*accuracy, server], dtype=float)
    bar = Bar("test accuracy", look, values, grey=len(clients))
    title = "Test accuracy of each model that a client sent, and of the server's, which is their average"
    return Bars(title=title, y=_SHARE, names=names, bars=[bar])


def _word(name: str) -> str:
    """For the name of a file.

    >>> _word("objective=vhl/seed 0")
    'objective-vhl-seed-0'
    """
    return re.sub("[^A-Za-z0-9]+", "-", name)[:60].strip("-") or "run"
