from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vhl.data.sources.base import data_directory
from vhl.experiment import Experiment


def table(out: str) -> dict[str, list[str]]:
    """The printed table, row by row: a client's name and its numbers."""
    rows = [re.split(r"\s*[│┃]\s*", line.strip("│┃ ")) for line in out.splitlines() if line[:1] in "│┃"]
    return {row[0]: row[1:] for row in rows}


def test_the_table_is_the_count_matrix(vhl: Any) -> None:
    answer = vhl("partition", "data=digits", "partition.clients=4", "partition.alpha=0.3", "seeds.data=2")
    assert answer.code == 0
    rows = table(answer.out)
    experiment = Experiment(partition={"clients": 4, "alpha": 0.3}, seeds={"data": 2})
    dataset = experiment.data.load(data_directory(), 2)
    parts = experiment.partition.assign(dataset, 2)
    assert rows.pop("client") == [*"0123456789", "all"]
    assert list(rows) == ["0", "1", "2", "3"]
    for client, part in enumerate(parts):
        labels = dataset.train.labels[part].tolist()
        expected = [labels.count(digit) for digit in range(10)]
        assert [int(cell) for cell in rows[str(client)]] == [*expected, len(part)]
    sizes = sorted(map(len, parts))
    assert f"4 clients, {sum(sizes):,} samples, {sizes[0]:,} to {sizes[-1]:,} a client" in answer.out


def test_clients_that_the_data_name(vhl: Any, pictures: Path) -> None:
    answer = vhl("partition", f"data=folder:{pictures}", "partition=given")
    rows = table(answer.out)  # a fifth of 16, 4, 8 and 12 is kept to test on
    assert rows == {
        "client": ["dark", "light", "all"],
        "north": ["13", "3", "16"],
        "south": ["6", "10", "16"],
    }
    assert "2 clients, 32 samples, 16 to 16 a client" in answer.out


def test_as_many_classes_and_clients_as_fit(vhl: Any) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        "many.npz",
        images=rng.integers(0, 255, (25 * 60, 4, 4), np.uint8),
        labels=np.tile(np.arange(25), 60),
    )
    answer = vhl("partition", "data=npz:many.npz", "partition=iid", "partition.clients=55")
    rows = table(answer.out)
    assert rows["client"][19:] == ["19", "…", "all"]
    assert "… 5 more" in rows and "49" in rows and "50" not in rows
    assert int(rows["0"][-1]) == 25 * 48 // 55 + (25 * 48 % 55 > 0)


def test_names_that_look_like_markup(vhl: Any) -> None:
    for site in ("[red]a", "b"):
        for name in ("[blue]", "plain"):
            folder = Path("odd") / site / name
            folder.mkdir(parents=True)
            for number in range(5):
                Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    rows = table(vhl("partition", "data=folder:odd", "partition=given").out)
    assert rows == {"client": ["[blue]", "plain", "all"], "[red]a": ["4", "4", "8"], "b": ["4", "4", "8"]}
