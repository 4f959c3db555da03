"""What is drawn, read back from Matplotlib's own objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from safetensors.torch import load_file

from vhl.paper.evidence import Evidence
from vhl.paper.figures import FIGURES, draw
from vhl.paper.rows import rows
from vhl.rounds.simulation import Simulation
from vhl.runs.digest import Digest
from vhl.runs.folder import RunFolder

MAIN = "cifar10/a0.1-e1-k10"
CURVE = [0.1, 0.4, 0.1, 0.7, 0.6]
SMOOTH = [25.0, 20.0, 40.0, 140 / 3, 65.0]  # means of up to three neighbours, in percent


def figure(name: str, *digests: Digest, runs: Path = Path("nowhere")) -> Figure:
    return FIGURES[name](Evidence(digests), runs)


def bold(axes: Axes) -> dict[str, Line2D]:
    """The smoothed curves by label."""
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def raw(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if str(line.get_label()).startswith("_")]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def subtitle(drawn: Figure) -> str:
    return str(drawn.subfigs[0].get_suptitle())


# --- one curve -----------------------------------------------------------------------------------------


def test_every_round_in_grey_and_a_running_mean_in_bold(digest: Callable[..., Digest]) -> None:
    drawn = figure("main", digest(f"{MAIN}/fedavg", CURVE))
    (grey,), curves = raw(drawn.axes[0]), bold(drawn.axes[0])
    assert list(grey.get_xdata()) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(grey.get_ydata(), [10, 40, 10, 70, 60])
    np.testing.assert_allclose(curves["FedAvg"].get_ydata(), SMOOTH)
    assert grey.get_linewidth() < curves["FedAvg"].get_linewidth()
    assert "running mean over 3 rounds" in subtitle(drawn) and "seeds" not in subtitle(drawn)
    assert drawn.axes[0].get_ylabel() == "test accuracy (%)"


def test_the_window_grows_with_the_longest_run_of_the_figure(digest: Callable[..., Digest]) -> None:
    steps = [0.0] * 100 + [1.0] * 100  # 200 rounds: a fortieth is 5
    drawn = figure("main", digest(f"{MAIN}/fedavg", steps), digest(f"{MAIN}/fedprox", CURVE))
    assert "running mean over 5 rounds" in subtitle(drawn)
    curves = bold(drawn.axes[0])
    np.testing.assert_allclose(curves["FedAvg"].get_ydata()[97:103], [0, 20, 40, 60, 80, 100])
    np.testing.assert_allclose(curves["FedProx"].get_ydata()[:2], [20, 32.5])


def test_rounds_without_evaluation_have_no_point(digest: Callable[..., Digest]) -> None:
    drawn = figure("main", digest(f"{MAIN}/fedavg", [None, 0.2, None, 0.4, 0.6]))
    assert list(raw(drawn.axes[0])[0].get_xdata()) == [2, 4, 5]
    np.testing.assert_allclose(bold(drawn.axes[0])["FedAvg"].get_ydata(), [20, 50, 50])


def test_drift_that_is_not_finite_has_no_point(digest: Callable[..., Digest]) -> None:
    drawn = figure("main", digest(f"{MAIN}/fedavg", CURVE, drift=[3.0, float("inf"), 1.0, float("nan"), 2.0]))
    assert list(raw(drawn.axes[1])[0].get_xdata()) == [1, 3, 5]
    assert list(raw(drawn.axes[1])[0].get_ydata()) == [3, 1, 2]  # no percentage


# --- seeds ---------------------------------------------------------------------------------------------


def test_the_mean_of_seeds_and_a_band_from_the_lowest_to_the_highest(digest: Callable[..., Digest]) -> None:
    other = [0.3, 0.2, 0.7, 0.3, 0.8]  # running means 25, 40, 40, 60, 55
    drawn = figure("main", *(digest(f"{MAIN}/fedavg", run, seed) for seed, run in enumerate((CURVE, other))))
    axes = drawn.axes[0]
    np.testing.assert_allclose(raw(axes)[0].get_ydata(), [20, 30, 40, 50, 70])
    np.testing.assert_allclose(bold(axes)["FedAvg"].get_ydata(), [25, 30, 40, 160 / 3, 60])
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    for round_, low, high in ((1, 25, 25), (2, 20, 40), (3, 40, 40), (4, 140 / 3, 60), (5, 55, 65)):
        heights = corners[corners[:, 0] == round_, 1]
        assert (heights.min(), heights.max()) == pytest.approx((low, high))
    assert to_hex(band.get_facecolor()[0]) == to_hex(bold(axes)["FedAvg"].get_color())
    assert "2 seeds, band from the lowest to the highest" in subtitle(drawn)


def test_one_seed_has_no_band(digest: Callable[..., Digest]) -> None:
    assert not figure("main", digest(f"{MAIN}/fedavg", CURVE)).axes[0].collections


@pytest.mark.parametrize(
    ("lengths", "rounds", "seeds"), [((5, 4, 4), 4, 3), ((5, 2, 2), 2, 3), ((5, 1, 1), 5, 1)]
)
def test_seeds_of_different_lengths_are_cut_where_most_is_shown(
    lengths: Sequence[int], rounds: int, seeds: int, digest: Callable[..., Digest]
) -> None:
    runs = [
        digest(f"{MAIN}/fedavg", [0.1 * (seed + 1)] * length, seed) for seed, length in enumerate(lengths)
    ]
    line = raw(figure("main", *runs).axes[0])[0]
    np.testing.assert_allclose(line.get_ydata(), [10 * (seeds + 1) / 2] * rounds)


# --- several curves ------------------------------------------------------------------------------------


def test_dashed_without_vhl_and_solid_with_it_in_one_colour(digest: Callable[..., Digest]) -> None:
    algorithms = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "fednova": "FedNova"}
    names = [f"{MAIN}/{algorithm}{end}" for algorithm in algorithms for end in ("", "-vhl")]
    drawn = figure("convergence-cifar10", *(digest(name, CURVE) for name in names))
    curves = bold(drawn.axes[0])
    for label in algorithms.values():
        plain, vhl = curves[label], curves[f"{label} + VHL"]
        assert (plain.get_linestyle(), vhl.get_linestyle()) == ("--", "-")
        assert plain.get_color() == vhl.get_color()
    assert len({curves[label].get_color() for label in algorithms.values()}) == 4
    (legend,) = drawn.subfigs[0].legends
    assert [text.get_text() for text in legend.get_texts()] == list(curves)
    assert len(curves) == 8


def test_a_panel_for_each_setting_says_where_nothing_was_run(digest: Callable[..., Digest]) -> None:
    drawn = figure("convergence-svhn", digest("svhn/a0.1-e5-k10/fedavg", CURVE))
    settings = ["α = 0.1, E = 1, K = 10", "α = 0.05, E = 1, K = 10", "α = 0.1, E = 5, K = 10"]
    settings.append("α = 0.1, E = 1, K = 100")
    titles = [f"({letter}) {setting}" for letter, setting in zip("abcd", settings, strict=True)]
    assert [axes.get_title() for axes in drawn.axes] == titles
    assert [texts(axes) for axes in drawn.axes] == [["not run"], ["not run"], [], ["not run"]]
    assert [len(axes.lines) for axes in drawn.axes] == [0, 0, 2, 0]


@pytest.mark.parametrize("name", [name for name in FIGURES if not name.startswith("features")])
def test_a_figure_of_nothing(name: str) -> None:
    assert all(texts(axes) == ["not run"] for axes in figure(name).axes)


def test_drift_of_naive_vhl_is_dotted(digest: Callable[..., Digest]) -> None:
    runs = [digest(f"{MAIN}/fedavg", CURVE), digest("further/naive/fedavg", CURVE, drift=[5, 4, 3, 2, 1])]
    curves = bold(figure("drift", *runs).axes[0])
    assert {label: line.get_linestyle() for label, line in curves.items()} == {
        "FedAvg": "--",
        "FedAvg + naive VHL": ":",
    }
    np.testing.assert_allclose(curves["FedAvg + naive VHL"].get_ydata(), [4.5, 4, 3, 2, 1.5])


def test_vhl_light_by_rounds_and_by_compute(digest: Callable[..., Digest]) -> None:
    """Runs are cut to 300 rounds, shorter ones are left out; a round of VHL is two of FedAvg."""
    light, vhl = "light/vhl-light/fedavg", f"{MAIN}/fedavg-vhl"
    runs = [digest(f"{MAIN}/fedavg", [0.2] * 1000), digest(f"{MAIN}/fedavg", [0.4] * 300, 1)]
    runs += [digest(vhl, [0.5] * 299, compute=2.0), digest(vhl, [0.6] * 300, 1, compute=2.0)]
    runs += [digest(light, [0.7] * 300, compute=1.25)]
    by_rounds, by_compute = (bold(axes) for axes in figure("light", *runs).axes)
    for name, height, cost in (("FedAvg", 30, 1), ("FedAvg + VHL", 60, 2), ("FedAvg + vhl-light", 70, 1.25)):
        places = np.arange(1, 301)
        np.testing.assert_allclose(by_rounds[name].get_xdata(), places)
        np.testing.assert_allclose(by_compute[name].get_xdata(), places * cost)
        for curves in (by_rounds, by_compute):
            np.testing.assert_allclose(curves[name].get_ydata(), [height] * 300)


def test_vhl_light_with_the_profile_whose_runs_are_long_enough(digest: Callable[..., Digest]) -> None:
    """In all there are more rounds with the paper's, but FedAvg alone had as many as are shown."""
    light, vhl = "light/vhl-light/fedavg", f"{MAIN}/fedavg-vhl"
    runs = [digest(f"{MAIN}/fedavg", [0.2] * 900), digest(light, [0.2] * 299), digest(vhl, [0.2] * 299)]
    runs += [digest(name, [0.6] * 300, profile="release") for name in (light, vhl)]
    drawn = figure("light", *runs)
    assert shown(drawn) == pytest.approx({"FedAvg": 20, "FedAvg + VHL": 60, "FedAvg + vhl-light": 60})
    assert subtitle(drawn).endswith("profile release, virtual data stylegan; FedAvg: profile paper")


def test_ablation(digest: Callable[..., Digest]) -> None:
    learnt = {"stylegan": [0.2, 0.4], "decoder": [0.1, 0.3], "tiny-imagenet": [0.0, 0.1]}
    runs = [digest(f"{MAIN}/fedavg", [0.1, 0.2]), digest("further/vftl/fedavg", [0.3, 0.5])]
    runs += [digest(f"{MAIN}/fedavg-vhl", [0.4, 0.6], virtual_accuracy=learnt["stylegan"])]
    runs += [
        digest(f"further/{virtual}/fedavg", [0.2, 0.2], virtual_accuracy=learnt[virtual])
        for virtual in ("decoder", "tiny-imagenet")
    ]
    runs += [digest(f"further/batch-{size}/fedavg", [size / 1000] * 2) for size in (64, 256, 384)]
    runs.append(digest("further/noise/fedavg", [0.2], profile="release", virtual_accuracy=[0.9]))  # no curve
    drawn = figure("ablation", *runs)
    first, second, third = map(bold, drawn.axes)
    assert {label: line.get_ydata()[0] for label, line in first.items()} == pytest.approx(
        {"FedAvg": 15, "VFTL": 40, "FedAvg + VHL": 50}
    )
    expected = {"$B_v$ = 64": 6.4, "$B_v$ = 128": 50, "$B_v$ = 256": 25.6, "$B_v$ = 384": 38.4}
    assert {label: line.get_ydata()[0] for label, line in second.items()} == pytest.approx(expected)
    assert {label: line.get_ydata()[0] for label, line in third.items()} == pytest.approx(
        {"stylegan": 30, "decoder": 20, "tiny-imagenet": 5}
    )
    assert drawn.axes[2].get_ylabel() == "training accuracy on virtual data (%)"
    assert "(a, b) profile paper, virtual data stylegan\n(c) profile paper" in subtitle(drawn)


# --- which runs are shown ------------------------------------------------------------------------------


def shown(drawn: Figure) -> dict[str, float]:
    """The constant height of each curve."""
    return {label: float(line.get_ydata()[0]) for label, line in bold(drawn.axes[0]).items()}


def test_the_longest_runs_are_shown_for_all_rows_alike(digest: Callable[..., Digest]) -> None:
    runs = [
        digest(f"{MAIN}/fedavg-vhl", [0.1] * 6, virtual="noise"),
        digest(f"{MAIN}/fedprox-vhl", [0.2] * 2, virtual="noise"),
        digest(f"{MAIN}/fedavg-vhl", [0.3] * 5),
        digest(f"{MAIN}/fedprox-vhl", [0.4] * 5),
        digest(f"{MAIN}/fedavg", [0.5] * 5),
    ]
    drawn = figure("main", *runs)  # together stylegan's are longer
    assert shown(drawn) == pytest.approx({"FedAvg": 50, "FedAvg + VHL": 30, "FedProx + VHL": 40})
    assert subtitle(drawn).endswith("profile paper, virtual data stylegan")


def test_of_equally_long_runs_those_with_more_seeds_then_the_papers_own(
    digest: Callable[..., Digest],
) -> None:
    name = f"{MAIN}/fedavg-vhl"
    runs = [digest(name, [0.1] * 3, virtual="noise"), digest(name, [0.3] * 3)]
    assert shown(figure("main", *runs)) == pytest.approx({"FedAvg + VHL": 30})
    runs.append(digest(name, [0.2] * 3, seed=1, virtual="noise"))
    drawn = figure("main", *runs)
    assert shown(drawn) == pytest.approx({"FedAvg + VHL": 15})
    assert subtitle(drawn).endswith("profile paper, virtual data noise")


def test_a_row_that_was_run_otherwise_is_shown_and_named(digest: Callable[..., Digest]) -> None:
    runs = [
        digest(f"{MAIN}/fedavg", [0.1] * 5),
        digest(f"{MAIN}/fedavg-vhl", [0.2] * 5),
        digest(f"{MAIN}/scaffold-vhl", [0.3] * 3, virtual="noise", profile="release"),
    ]
    drawn = figure("main", *runs)
    assert shown(drawn) == pytest.approx({"FedAvg": 10, "FedAvg + VHL": 20, "SCAFFOLD + VHL": 30})
    others = "SCAFFOLD + VHL: profile release, virtual data noise"
    assert subtitle(drawn).endswith(f"profile paper, virtual data stylegan; {others}")


def test_panels_with_other_choices_are_told_apart(digest: Callable[..., Digest]) -> None:
    runs = [
        digest("fmnist/a0.1-e1-k10/fedavg", CURVE),
        digest("fmnist/a0.1-e5-k10/fedavg", CURVE, profile="release"),
        digest("fmnist/a0.1-e1-k100/fedavg", CURVE),
    ]
    assert subtitle(figure("convergence-fmnist", *runs)).endswith("(a, d) profile paper\n(c) profile release")


# --- features ------------------------------------------------------------------------------------------

CLASSES = ["airplane", "automobile", "bird"]
Save = Callable[..., RunFolder]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """A run folder with features: three classes far apart, with ten test and five virtual samples each."""

    def make(name: str, *rounds: int, with_virtual: bool, **choice: Any) -> RunFolder:
        folder = RunFolder(tmp_path / f"run{len(list(tmp_path.iterdir()))}")
        experiment = rows()[name].experiment(**choice).with_(features_at=rounds)
        folder.begin(experiment, {"classes": CLASSES}, {})
        random = torch.Generator().manual_seed(0)
        for round_ in rounds:
            tensors = {"clients": torch.tensor([7, 2, 9, 4])}
            for model in ("server", "client7", "client2", "client9"):
                for kind, count in (("test", 10), ("virtual", 5))[: 1 + with_virtual]:
                    labels = torch.arange(3).repeat_interleave(count)
                    centres = 100.0 * torch.eye(3, 8).roll(3 * (kind == "virtual"), 1)
                    values = centres[labels] + torch.rand(len(labels), 8, generator=random)
                    tensors |= {f"{model}.{kind}.features": values, f"{model}.{kind}.labels": labels}
            folder.save_features(round_, tensors)
        return folder

    return make


def points(axes: Axes) -> list[PathCollection]:
    """Samples, without the rings."""
    return [found for found in axes.collections if len(found.get_facecolor())]


def rings(axes: Axes) -> list[PathCollection]:
    return [found for found in axes.collections if not len(found.get_facecolor())]


def marker(found: PathCollection) -> tuple[int, ...]:
    return found.get_paths()[0].vertices.shape


def test_features_of_clients(save: Save, tmp_path: Path) -> None:
    save(f"{MAIN}/fedavg-vhl", 10, with_virtual=True)
    drawn = figure("features-clients", runs=tmp_path)
    plain, naive, vhl = drawn.axes  # one column: one round was saved
    assert texts(plain) == texts(naive) == ["not run"]
    assert vhl.get_title() == "round 10 (clients 7, 2, 9)"
    assert [axes.get_ylabel() for axes in drawn.axes] == ["FedAvg", "FedAvg + naive VHL", "FedAvg + VHL"]
    assert Counter(len(found.get_offsets()) for found in points(vhl)) == {30: 3, 15: 3}
    assert len({marker(found) for found in points(vhl)}) == 3  # a shape for each client
    assert [len(found.get_offsets()) for found in rings(vhl)] == [15] * 3
    virtual = [found for found in points(vhl) if len(found.get_offsets()) == 15]
    for ring, inside in zip(rings(vhl), virtual, strict=True):
        assert ring.get_offsets().tolist() == inside.get_offsets().tolist()
        assert ring.get_linestyle()[0][1] is not None  # dots
    assert "virtual data stylegan" in subtitle(drawn)


def test_features_as_a_round_leaves_them(
    save: Save,
    digit_simulation: Callable[..., Simulation],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vhl.paper.figures.features.POINTS", 60)
    simulation = digit_simulation(objective="vhl", features_at=(1,))
    simulation.run_round()
    save(f"{MAIN}/fedavg-vhl", 10, with_virtual=True).save_features(10, simulation.snapshot)
    for whose, counts in (("clients", [10] * 6), ("server", [30] * 2)):
        axes = figure(f"features-{whose}", runs=tmp_path).axes[2]
        assert [len(found.get_offsets()) for found in points(axes)] == counts


def test_colours_are_those_of_the_classes(save: Save, tmp_path: Path) -> None:
    """t-SNE keeps far-apart clusters apart: the nearest other sample has the same class and kind."""
    save(f"{MAIN}/fedavg-vhl", 10, with_virtual=True)
    axes = figure("features-server", runs=tmp_path).axes[2]
    assert [len(found.get_offsets()) for found in points(axes)] == [30, 15]
    places = np.concatenate([found.get_offsets() for found in points(axes)])
    colours = [to_hex(colour) for found in points(axes) for colour in found.get_facecolor()]
    kinds = [(colour, number < 30) for number, colour in enumerate(colours)]
    assert Counter(kinds) == {kind: 10 if kind[1] else 5 for kind in kinds} and len(set(kinds)) == 6
    distances = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag([np.inf] * len(places))
    assert [kinds[near] for near in distances.argmin(1)] == kinds


def test_the_nearest_saved_rounds_are_shown_once(save: Save, tmp_path: Path) -> None:
    save(f"{MAIN}/fedavg", 10, 90, with_virtual=False)
    save("further/naive/fedavg", 12, with_virtual=True)
    drawn = figure("features-server", runs=tmp_path)
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles == ["round 10", "round 90", "round 12", "", "", ""]
    assert [len(rings(axes)) for axes in drawn.axes] == [0, 0, 1, 0, 0, 0]
    assert texts(drawn.axes[3]) == ["not run"]


def test_a_saved_round_stands_in_its_own_column(save: Save, tmp_path: Path) -> None:
    save(f"{MAIN}/fedavg", 10, 100, 300, with_virtual=False)
    save("further/naive/fedavg", 300, with_virtual=True)
    drawn = figure("features-server", runs=tmp_path)
    titles = [axes.get_title() for axes in drawn.axes[3:6]]
    assert titles == ["", "", "round 300"]


def test_of_several_runs_those_with_the_same_choice(save: Save, tmp_path: Path) -> None:
    save(f"{MAIN}/fedavg", 10, 100, with_virtual=False)
    save(f"{MAIN}/fedavg-vhl", 100, with_virtual=True, profile="release")
    save(f"{MAIN}/fedavg-vhl", 20, with_virtual=True, virtual="noise")
    drawn = figure("features-server", runs=tmp_path)  # with the profile of FedAvg, not the longer run
    assert [axes.get_title() for axes in drawn.axes] == ["round 10", "round 100", "", "", "round 20", ""]
    assert subtitle(drawn).endswith("profile paper, virtual data noise")


def test_samples_are_shared_out_evenly(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vhl.paper.figures.features.POINTS", 25)
    save(f"{MAIN}/fedavg-vhl", 10, with_virtual=True)
    axes = figure("features-clients", runs=tmp_path).axes[2]
    assert [len(found.get_offsets()) for found in points(axes)] == [4] * 6
    colours = [found.get_facecolor().tolist() for found in points(axes)]
    assert (
        colours[0] == colours[2] == colours[4] and colours[1] == colours[3] == colours[5]
    )  # the same images


def test_samples_that_are_not_finite_are_left_out(save: Save, tmp_path: Path) -> None:
    folder = save(f"{MAIN}/fedavg", 10, with_virtual=False)
    tensors = load_file(folder.path / "features" / "round-000010.safetensors")
    tensors["client2.test.features"][:] = float("nan")
    tensors["server.test.features"][:] = float("inf")
    folder.save_features(10, tensors)
    axes = figure("features-clients", runs=tmp_path).axes[0]
    assert [len(found.get_offsets()) for found in points(axes)] == [30, 0, 30]
    assert texts(figure("features-server", runs=tmp_path).axes[0]) == ["diverged"]


def test_no_features(save: Save, tmp_path: Path, complains: Callable[..., Any]) -> None:
    with complains(
        tmp_path / "runs", f"`vhl paper run {MAIN}/fedavg further/naive/fedavg {MAIN}/fedavg-vhl`"
    ):
        figure("features-clients", runs=tmp_path / "runs")
    save("svhn/a0.1-e1-k10/fedavg", 10, with_virtual=False)  # of something else
    last = save(f"{MAIN}/fedavg", with_virtual=False)
    last.save_features(1000, {"client_accuracy": torch.ones(5)})  # what every run leaves
    with complains("features"):
        figure("features-server", runs=tmp_path)


# --- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".SVG", b"<?xml"), (".pdf", b"%PDF")])
def test_files(suffix: str, start: bytes, tmp_path: Path, digest: Callable[..., Digest]) -> None:
    evidence = Evidence([digest(f"{MAIN}/fedavg", CURVE)])
    for name in ("one", "two"):
        draw("main", evidence, tmp_path, tmp_path / "new" / f"{name}{suffix}")
    one, two = sorted((tmp_path / "new").iterdir())  # and nothing else
    assert one.read_bytes().startswith(start)
    assert one.read_bytes() == two.read_bytes()
    assert b"CreationDate" not in one.read_bytes() and b"dc:date" not in one.read_bytes()


def test_three_hundred_dots_an_inch(tmp_path: Path) -> None:
    draw("main", Evidence([]), tmp_path, tmp_path / "main.png")
    with Image.open(tmp_path / "main.png") as image:
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)


def test_unknown_figures_and_files(tmp_path: Path, complains: Callable[..., Any]) -> None:
    with complains("'convergence-cifr10'", "did you mean 'convergence-cifar10'?"):
        draw("convergence-cifr10", Evidence([]), tmp_path, tmp_path / "figure.png")
    with complains("'zzz'", "ablation", "features-server"):
        draw("zzz", Evidence([]), tmp_path, tmp_path / "figure.png")
    with complains("figure.jpg", ".png, .svg, .pdf"):
        draw("main", Evidence([]), tmp_path, tmp_path / "figure.jpg")
    assert not list(tmp_path.iterdir())
