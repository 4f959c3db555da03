"""`vhl partition`: how the data are dealt out, as a coloured table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vhl.cli.arguments import Commands, add_command, add_data_dir, add_settings

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

_MOST_CLASSES, _MOST_CLIENTS = 20, 50  # what fits a terminal


def add(commands: Commands) -> None:
    parser = add_command(commands, "partition", _partition)
    add_settings(parser)
    add_data_dir(parser)


def _partition(arguments: argparse.Namespace) -> None:
    """Show how the data are dealt out to clients."""
    from vhl.cli import settings
    from vhl.cli.display import console, say
    from vhl.data.partitions.base import count_matrix, heterogeneity
    from vhl.data.sources.base import data_directory

    experiment = settings.read(arguments.settings)
    dataset = experiment.data.load(data_directory(arguments.data_dir), experiment.seeds.data)
    parts = experiment.partition.assign(dataset, experiment.seeds.data)
    counts = count_matrix(dataset.train.labels, parts, len(dataset.classes))
    names = dataset.sites if experiment.partition.name == "given" else [str(k) for k in range(len(parts))]
    console.print(_table(counts, list(dataset.classes), list(names)))
    say(
        f"{len(parts)} clients, {counts.sum():,} samples, "
        f"{counts.sum(1).min():,} to {counts.sum(1).max():,} a client; "
        f"heterogeneity {heterogeneity(counts):.3f} (0: every client looks like the whole)"
    )


def _table(counts: np.ndarray, classes: list[str], names: list[str]) -> Table:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table("client", title="samples of each class", title_justify="left")
    for name in classes[:_MOST_CLASSES]:
        table.add_column(escape(name[:10]), justify="right")
    if len(classes) > _MOST_CLASSES:
        table.add_column("…")
    table.add_column("all", justify="right")
    for name, row in list(zip(names, counts, strict=True))[:_MOST_CLIENTS]:
        cells = [Text(str(count), _colour(count, row.sum())) for count in row[:_MOST_CLASSES]]
        table.add_row(escape(name), *cells, *([""] if len(classes) > _MOST_CLASSES else []), str(row.sum()))
    if len(counts) > _MOST_CLIENTS:
        table.add_row(f"… {len(counts) - _MOST_CLIENTS} more")
    return table


def _colour(count: int, total: int) -> str:
    """The brighter, the larger a share of the client's samples."""
    level = round(40 + 215 * (count / total) ** 0.5)
    return f"rgb({level},{level},80)" if count else "dim"
