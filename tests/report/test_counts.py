"""Who has what, and the accuracy of classes and clients, against the run folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vhl.report.figure import Figure
from vhl.report.looks import look
from vhl.runs.folder import RunFolder

Write = Callable[..., RunFolder]
Described = dict[str, Figure]


@pytest.fixture(scope="module")
def figures(compared: list[RunFolder], described: Callable[..., Described]) -> Described:
    return described(compared)


def test_who_has_what(figures: Described) -> None:
    first, second = (figures[f"partition-{number}"] for number in (1, 2))
    (panel,), (other,) = first.panels, second.panels
    assert panel.counts.tolist() == [[30, 0, 4], [1, 20, 5]] and other.counts.tolist() == [[7, 8, 9]]
    assert panel.columns == ["cat", "dog", "owl"]
    assert (panel.rows, other.rows) == (["client 0: 34", "client 1: 26"], ["Rome: 24"])
    assert first.subtitle.startswith(
        "2 clients, 60 training images, 1,500 test images.\nHeterogeneity 0.43: "
    )
    assert second.subtitle.startswith("1 client, 24 training images")


def test_of_very_many_clients_the_first(write: Write, described: Any, tmp_path: Path) -> None:
    run = write(tmp_path / "run", [0.5], {"counts": [[1, 2, client] for client in range(250)]})
    figure = described([run])["partition-1"]
    assert figure.panels[0].counts.tolist() == [[1, 2, client] for client in range(200)]
    assert figure.subtitle.startswith("250 clients (shown: the first 200), 31,875 training images")


def test_classes_in_the_mean_over_seeds(write: Write, record: Any, described: Any, tmp_path: Path) -> None:
    """Of the last round in which they were measured; a class without test images has none."""
    first = [
        record(1, 0.1, per_class=[0.1, 0.1, 0.1]),
        record(2, 0.2, per_class=[0.5, None, None]),
        record(3, None),
    ]
    runs = [
        write(tmp_path / "a", first),
        write(tmp_path / "b", [record(1, 0.1, per_class=[0.7, None, 0.25])], seeds={"batches": 1}),
        write(tmp_path / "c", [0.5], seeds={"batches": 2}),
        write(tmp_path / "d", [0.5], objective="plain"),
    ]
    (panel,) = described(runs)["per-class"].panels
    (bar,) = panel.bars
    np.testing.assert_allclose(bar.values, [60, np.nan, 25])
    assert (bar.label, bar.look, bar.grey) == ("fedavg + vhl", look(0), 0)
    assert panel.names == ("cat", "dog", "owl")
    assert "per-class" not in described(runs[3:])


def test_as_many_classes_of_other_names_are_other_classes(
    write: Write, record: Any, described: Any, tmp_path: Path
) -> None:
    others = {"classes": ["one", "two", "three"]}
    runs = [
        write(tmp_path / "a", [record(1, 0.5, per_class=[0.1, 0.2, 0.3])], partition={"alpha": 0.1}),
        write(tmp_path / "b", [record(1, 0.5, per_class=[0.4, 0.5, 0.6])], partition={"alpha": 1.0}),
        write(tmp_path / "c", [record(1, 0.5, per_class=[0.7, 0.8, 0.9])], others, data="svhn"),
    ]
    figures = described(runs)
    (panel,), (other,) = figures["per-class"].panels, figures["per-class-2"].panels
    assert [bar.values.tolist() for bar in panel.bars] == [
        pytest.approx([10, 20, 30]),
        pytest.approx([40, 50, 60]),
    ]
    assert [bar.values.tolist() for bar in other.bars] == [pytest.approx([70, 80, 90])]
    assert (panel.title, other.title, other.names) == ("digits", "svhn", ("one", "two", "three"))


def test_confusion_and_the_clients_of_the_last_round(compared: list[RunFolder], figures: Described) -> None:
    """Outputs for virtual classes are one column; the clients stand in the order in which they sent."""
    confusion, clients = figures["run-4-ours-seed0"].panels
    assert confusion.counts.tolist() == [[9, 1, 0, 2], [2, 7, 1, 1], [0, 3, 6, 0]]
    assert confusion.columns == ["cat", "dog", "owl", "a virtual class"]
    assert confusion.rows == ["cat", "dog", "owl"]
    (bar,) = clients.bars
    assert bar.values.tolist() == pytest.approx([25, 62.5, 100 * compared[3].records()[-1].accuracy])
    assert clients.names == ["client 1", "client 0", "server"] and (bar.grey, bar.look) == (2, look(1))


def test_confusion_without_virtual_classes_and_clients_by_name(
    write: Write, record: Any, described: Any, tmp_path: Path
) -> None:
    """The last evaluated round counts; a client whose model diverged has no bar."""
    run = write(tmp_path / "run", [record(1, 0.75), record(2, None)], {"sites": ["Rome", "Paris"]})
    counts = torch.tensor([[8, 1, 1], [0, 6, 0], [2, 0, 3]])
    sent = {"clients": torch.tensor([1]), "client_accuracy": torch.tensor([float("nan")])}
    run.save_last({"confusion": counts, **sent})
    confusion, clients = described([run])["run-1-run"].panels
    assert confusion.counts.tolist() == counts.tolist() and confusion.columns == confusion.rows
    np.testing.assert_allclose(clients.bars[0].values, [np.nan, 75])
    assert clients.names == ["Paris", "server"]


def test_names_of_files_are_short_and_differ(
    compared: list[RunFolder], described: Any, tmp_path: Path
) -> None:
    names = ["ä-" + 100 * "x", "é-" + 100 * "x", "…"]
    runs = [RunFolder(shutil.copytree(compared[3].path, tmp_path / name)) for name in names]
    found = [name for name in described(runs) if name.startswith("run-")]
    assert found == [f"run-1-{'x' * 59}", f"run-2-{'x' * 59}", "run-3-run"]
