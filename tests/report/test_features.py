"""Where features lie in the plane, and which samples are shown."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vhl.report.features import POINTS, embed, points
from vhl.report.figure import Figure, Points
from vhl.runs.folder import RunFolder

Write = Callable[..., RunFolder]
NAMES = ("cat", "dog", "owl")


def test_each_saved_round_has_a_figure_with_a_panel_for_each_method(
    compared: list[RunFolder], described: Callable[..., dict[str, Figure]]
) -> None:
    """Of the first run that has features; the server's model comes first."""
    figures = {name: own for name, own in described(compared).items() if name.startswith("features")}
    assert list(figures) == ["features-10", "features-30"]
    (panel,) = figures["features-10"].panels
    assert panel.title == "fedavg + vhl" and panel.models == ["server", "client1"]
    for cloud in panel.clouds:
        expected = {3: 2, 4: 2} if cloud.virtual else {0: 3, 1: 3, 2: 3}
        assert Counter(cloud.classes.tolist()) == expected
        assert len(cloud.x) == len(cloud.y) == len(cloud.classes)
    assert panel.clouds[0].x.tolist() != figures["features-30"].panels[0].clouds[0].x.tolist()


def test_a_round_that_one_method_did_not_save(write: Write, described: Any, tmp_path: Path) -> None:
    runs = [write(tmp_path / name, [0.5], objective=name) for name in ("plain", "vhl")]
    save_features(runs[0], 4, lambda values: None)
    save_features(runs[1], 4, lambda values: values.fill_(math.nan), round_=2, models=("server",))
    runs.append(write(tmp_path / "second", [0.5], objective="vhl", seeds={"batches": 1}))
    save_features(runs[2], 4, lambda values: None, round_=3)  # the method's first run is shown
    figures = described(runs)
    assert "features-3" not in figures
    assert [panel.note for panel in figures["features-1"].panels] == ["", "not saved"]
    assert [panel.note for panel in figures["features-2"].panels] == ["not saved", "diverged"]


def test_points_that_belong_together_lie_together(compared: list[RunFolder]) -> None:
    """The labels are those of the points: in the files a class is a cluster."""
    clouds = points(compared[3].path / "features" / "round-000010.safetensors", NAMES, "").clouds
    places = np.concatenate([np.column_stack([cloud.x, cloud.y]) for cloud in clouds])
    labels = np.concatenate([cloud.classes for cloud in clouds])
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).all()


def save_features(
    run: RunFolder,
    samples: int,
    change: Callable[[torch.Tensor], Any],
    round_: int = 1,
    models: tuple[str, ...] = ("client3", "client12", "server"),
) -> Path:
    """Features of as many test images in these models; the label is the place in the file."""
    rng = torch.Generator().manual_seed(0)
    tensors = {}
    for model in models:
        tensors[f"{model}.test.features"] = torch.randn(samples, 3, generator=rng)
        tensors[f"{model}.test.labels"] = torch.arange(samples)
    change(tensors["server.test.features"])
    run.save_features(round_, tensors)
    return run.path / "features" / f"round-{round_:06}.safetensors"


def labels(panel: Points) -> dict[str, list[int]]:
    return {cloud.model: cloud.classes.tolist() for cloud in panel.clouds}


def test_what_diverged_has_no_place(write: Write, tmp_path: Path) -> None:
    def break_two(values: torch.Tensor) -> None:
        values[3, 1], values[5, 0] = math.nan, math.inf

    found = labels(points(save_features(write(tmp_path / "run", [0.5]), 8, break_two), NAMES, ""))
    assert list(found) == ["server", "client12", "client3"]
    assert sorted(found["client3"]) == list(range(8)) and sorted(found["server"]) == [0, 1, 2, 4, 6, 7]


@pytest.mark.parametrize("left", [0, 1])
def test_nearly_everything_diverged(write: Write, tmp_path: Path, left: int) -> None:
    def break_most(values: torch.Tensor) -> None:
        values[left:] = math.nan

    run = write(tmp_path / "run", [0.5])
    panel = points(save_features(run, 1 + left, break_most, models=("server",)), NAMES, "")
    assert len(labels(panel)["server"]) == left and panel.note == ("" if left else "diverged")
    assert panel.clouds[0].x.tolist() == [0.0][:left]


def test_a_file_without_features(write: Write, tmp_path: Path) -> None:
    """Such as older versions left after the last round."""
    run = write(tmp_path / "run", [0.5])
    run.save_features(1, {"client_accuracy": torch.ones(5)})
    assert points(run.path / "features" / "round-000001.safetensors", NAMES, "").clouds == ()


def test_the_same_samples_of_the_models_asked_for(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture holds so many points in all; which samples they are is the same for each model."""
    file = save_features(write(tmp_path / "run", [0.5]), POINTS, lambda values: None)
    monkeypatch.setattr("vhl.report.features.embed", lambda values: values[:, :2])  # t-SNE takes seconds here
    panel = points(file, NAMES, "", ["client3", "server"], 100)
    client, server = labels(panel).values()
    assert list(labels(panel)) == ["client3", "server"]
    assert server == client and len(server) == len(set(server)) == 50
    assert server != sorted(server)  # drawn, not the first ones
    stored = load_file(file)["server.test.features"]
    assert panel.clouds[1].x == pytest.approx(stored[server, 0].numpy(), abs=0.006)


def test_a_picture_is_made_once_until_its_file_changes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_features(write(tmp_path / "run", [0.5]), 4, lambda values: None)
    calls = []
    monkeypatch.setattr("vhl.report.features.embed", lambda values: calls.append(1) or values[:, :2])
    points(file, NAMES, ""), points(file, NAMES, "")
    assert len(calls) == 1
    time.sleep(0.02)  # a file system's clock may be coarse
    save_file(load_file(file), file)
    points(file, NAMES, "")
    assert len(calls) == 2


# --- t-SNE ---------------------------------------------------------------------------------------------


def clusters(each: int, dimensions: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Three clusters, a hundred standard deviations apart."""
    rng = np.random.default_rng(0)
    labels = np.arange(3).repeat(each)
    values = 100 * np.eye(dimensions)[labels] + rng.normal(size=(len(labels), dimensions))
    return values.astype(np.float32), labels


def test_neighbours_stay_neighbours() -> None:
    values, labels = clusters(each=25)
    plane = embed(values)
    assert plane.shape == (75, 2) and np.isfinite(plane).all()
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).all()


def test_the_same_picture_every_time() -> None:
    values = np.random.default_rng(0).normal(size=(120, 60)).astype(np.float32)
    np.testing.assert_array_equal(embed(values), embed(values))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_samples_have_a_place_too(count: int) -> None:
    plane = embed(clusters(each=2)[0][:count])
    assert plane.shape == (count, 2) and np.isfinite(plane).all()
    assert len(np.unique(plane, axis=0)) == count
