"""The paper's figures as data, and their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vhl.paper.evidence import Evidence
from vhl.paper.figures import FIGURES, draw
from vhl.paper.rows import rows
from vhl.report.figure import Figure, Numbers
from vhl.report.looks import DASHED, DOTTED, Look
from vhl.rounds.simulation import Simulation
from vhl.runs.digest import Digest
from vhl.runs.folder import RunFolder

MAIN = "cifar10/a0.1-e1-k10"
CURVE = [0.1, 0.4, 0.1, 0.7, 0.6]
SMOOTH = [25.0, 20.0, 40.0, 140 / 3, 65.0]  # means of up to three neighbours, in percent


def figure(name: str, *digests: Digest, runs: Path = Path("nowhere")) -> Figure:
    return FIGURES[name](Evidence(digests), runs)


def means(panel: Any) -> dict[str, Numbers]:
    """The smoothed curves by label."""
    return {own.label: own.bands[panel.window].mean for own in panel.series}


def rounds(panel: Any, label: str = "FedAvg") -> list[float]:
    (own,) = (own for own in panel.series if own.label == label)
    return list(own.places["round"])


def heights(described: Figure) -> dict[str, float]:
    """Of each curve of the first panel, at its begin."""
    return {label: float(mean[0]) for label, mean in means(described.panels[0]).items()}


# --- one curve -----------------------------------------------------------------------------------------


def test_every_round_and_a_running_mean(digest: Callable[..., Digest]) -> None:
    described = figure("main", digest(f"{MAIN}/fedavg", CURVE))
    panel = described.panels[0]
    np.testing.assert_allclose(panel.series[0].bands[1].mean, [10, 40, 10, 70, 60])
    np.testing.assert_allclose(means(panel)["FedAvg"], SMOOTH)
    assert rounds(panel) == [1, 2, 3, 4, 5] and panel.series[0].bands[3].low is None
    assert "running mean over 3 rounds" in described.subtitle and "seeds" not in described.subtitle
    assert panel.y == "test accuracy (%)"


def test_the_window_grows_with_the_longest_run_of_the_figure(digest: Callable[..., Digest]) -> None:
    steps = [0.0] * 100 + [1.0] * 100  # 200 rounds: a fortieth is 5
    described = figure("main", digest(f"{MAIN}/fedavg", steps), digest(f"{MAIN}/fedprox", CURVE))
    assert "running mean over 5 rounds" in described.subtitle
    curves = means(described.panels[0])
    np.testing.assert_allclose(curves["FedAvg"][97:103], [0, 20, 40, 60, 80, 100])
    np.testing.assert_allclose(curves["FedProx"][:2], [20, 32.5])


def test_rounds_without_a_finite_value_have_no_point(digest: Callable[..., Digest]) -> None:
    drift = [3.0, float("inf"), 1.0, float("nan"), 2.0]
    accuracy, divergence = figure(
        "main", digest(f"{MAIN}/fedavg", [None, 0.2, None, 0.4, 0.6], drift=drift)
    ).panels
    assert rounds(accuracy) == [2, 4, 5] and rounds(divergence) == [1, 3, 5]
    np.testing.assert_allclose(means(accuracy)["FedAvg"], [20, 50, 50])
    assert list(divergence.series[0].bands[1].mean) == [3, 1, 2]  # no percentage


# --- seeds ---------------------------------------------------------------------------------------------


def test_the_mean_of_seeds_and_a_band_from_the_lowest_to_the_highest(digest: Callable[..., Digest]) -> None:
    other = [0.3, 0.2, 0.7, 0.3, 0.8]  # running means 25, 40, 40, 60, 55
    runs = (digest(f"{MAIN}/fedavg", run, seed) for seed, run in enumerate((CURVE, other)))
    described = figure("main", *runs)
    bands = described.panels[0].series[0].bands
    np.testing.assert_allclose(bands[1].mean, [20, 30, 40, 50, 70])
    np.testing.assert_allclose(bands[3].mean, [25, 30, 40, 160 / 3, 60])
    np.testing.assert_allclose(bands[3].low, [25, 20, 40, 140 / 3, 55])
    np.testing.assert_allclose(bands[3].high, [25, 40, 40, 60, 65])
    assert "2 seeds, band from the lowest to the highest" in described.subtitle


@pytest.mark.parametrize(
    ("lengths", "rounds", "seeds"), [((5, 4, 4), 4, 3), ((5, 2, 2), 2, 3), ((5, 1, 1), 5, 1)]
)
def test_seeds_of_different_lengths_are_cut_where_most_is_shown(
    lengths: Sequence[int], rounds: int, seeds: int, digest: Callable[..., Digest]
) -> None:
    runs = [
        digest(f"{MAIN}/fedavg", [0.1 * (seed + 1)] * length, seed) for seed, length in enumerate(lengths)
    ]
    (own,) = figure("main", *runs).panels[0].series
    np.testing.assert_allclose(own.bands[1].mean, [10 * (seeds + 1) / 2] * rounds)


# --- several curves ------------------------------------------------------------------------------------


def test_dashed_without_vhl_and_solid_with_it_in_one_colour(digest: Callable[..., Digest]) -> None:
    algorithms = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "fednova": "FedNova"}
    names = [f"{MAIN}/{algorithm}{end}" for algorithm in algorithms for end in ("", "-vhl")]
    described = figure("convergence-cifar10", *(digest(name, CURVE) for name in names))
    expected = {}
    for colour, label in enumerate(algorithms.values()):
        expected |= {label: Look(colour, DASHED), f"{label} + VHL": Look(colour)}
    assert {own.label: own.look for own in described.panels[0].series} == expected


def test_a_panel_for_each_setting_says_where_nothing_was_run(digest: Callable[..., Digest]) -> None:
    described = figure("convergence-svhn", digest("svhn/a0.1-e5-k10/fedavg", CURVE))
    settings = ["α = 0.1, E = 1, K = 10", "α = 0.05, E = 1, K = 10", "α = 0.1, E = 5, K = 10"]
    settings.append("α = 0.1, E = 1, K = 100")
    titles = [f"({letter}) {setting}" for letter, setting in zip("abcd", settings, strict=True)]
    assert [panel.title for panel in described.panels] == titles
    assert [panel.note for panel in described.panels] == ["not run", "not run", "", "not run"]
    assert [len(panel.series) for panel in described.panels] == [0, 0, 1, 0]


@pytest.mark.parametrize("name", [name for name in FIGURES if not name.startswith("features")])
def test_a_figure_of_nothing(name: str) -> None:
    assert all(panel.note == "not run" for panel in figure(name).panels)


def test_drift_of_naive_vhl_is_dotted(digest: Callable[..., Digest]) -> None:
    runs = [digest(f"{MAIN}/fedavg", CURVE), digest("further/naive/fedavg", CURVE, drift=[5, 4, 3, 2, 1])]
    panel = figure("drift", *runs).panels[0]
    looks = {own.label: own.look for own in panel.series}
    assert looks == {"FedAvg": Look(0, DASHED), "FedAvg + naive VHL": Look(0, DOTTED)}
    np.testing.assert_allclose(means(panel)["FedAvg + naive VHL"], [4.5, 4, 3, 2, 1.5])


def test_vhl_light_by_rounds_and_by_compute(digest: Callable[..., Digest]) -> None:
    """Runs are cut to 300 rounds, shorter ones are left out; a round of VHL is two of FedAvg."""
    light, vhl = "light/vhl-light/fedavg", f"{MAIN}/fedavg-vhl"
    runs = [digest(f"{MAIN}/fedavg", [0.2] * 1000), digest(f"{MAIN}/fedavg", [0.4] * 300, 1)]
    runs += [digest(vhl, [0.5] * 299, compute=2.0), digest(vhl, [0.6] * 300, 1, compute=2.0)]
    runs += [digest(light, [0.7] * 300, compute=1.25)]
    described = figure("light", *runs)
    assert [list(panel.axes) for panel in described.panels] == [["round"], ["compute"]]
    for panel in described.panels:
        found = {own.label: own for own in panel.series}
        for name, height, cost in (
            ("FedAvg", 30, 1),
            ("FedAvg + VHL", 60, 2),
            ("FedAvg + vhl-light", 70, 1.25),
        ):
            np.testing.assert_allclose(found[name].places["round"], np.arange(1, 301))
            np.testing.assert_allclose(found[name].places["compute"], np.arange(1, 301) * cost)
            np.testing.assert_allclose(found[name].bands[panel.window].mean, [height] * 300)


def test_vhl_light_with_the_profile_whose_runs_are_long_enough(digest: Callable[..., Digest]) -> None:
    """In all there are more rounds with the paper's, but FedAvg alone had as many as are shown."""
    light, vhl = "light/vhl-light/fedavg", f"{MAIN}/fedavg-vhl"
    runs = [digest(f"{MAIN}/fedavg", [0.2] * 900), digest(light, [0.2] * 299), digest(vhl, [0.2] * 299)]
    runs += [digest(name, [0.6] * 300, profile="release") for name in (light, vhl)]
    described = figure("light", *runs)
    assert heights(described) == pytest.approx({"FedAvg": 20, "FedAvg + VHL": 60, "FedAvg + vhl-light": 60})
    assert described.subtitle.endswith("profile release, virtual data stylegan; FedAvg: profile paper")


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
    described = figure("ablation", *runs)
    first, second, third = (
        {label: mean[0] for label, mean in means(panel).items()} for panel in described.panels
    )
    assert first == pytest.approx({"FedAvg": 15, "VFTL": 40, "FedAvg + VHL": 50})
    assert second == pytest.approx({"Bᵥ = 64": 6.4, "Bᵥ = 128": 50, "Bᵥ = 256": 25.6, "Bᵥ = 384": 38.4})
    assert third == pytest.approx({"stylegan": 30, "decoder": 20, "tiny-imagenet": 5})
    assert described.own_legends and described.panels[2].y == "training accuracy on virtual data (%)"
    assert "(a, b) profile paper, virtual data stylegan\n(c) profile paper" in described.subtitle


# --- which runs are shown ------------------------------------------------------------------------------


def test_the_longest_runs_are_shown_for_all_rows_alike(digest: Callable[..., Digest]) -> None:
    runs = [
        digest(f"{MAIN}/fedavg-vhl", [0.1] * 6, virtual="noise"),
        digest(f"{MAIN}/fedprox-vhl", [0.2] * 2, virtual="noise"),
        digest(f"{MAIN}/fedavg-vhl", [0.3] * 5),
        digest(f"{MAIN}/fedprox-vhl", [0.4] * 5),
        digest(f"{MAIN}/fedavg", [0.5] * 5),
    ]
    described = figure("main", *runs)  # together stylegan's are longer
    assert heights(described) == pytest.approx({"FedAvg": 50, "FedAvg + VHL": 30, "FedProx + VHL": 40})
    assert described.subtitle.endswith("profile paper, virtual data stylegan")


def test_of_equally_long_runs_those_with_more_seeds_then_the_papers_own(
    digest: Callable[..., Digest],
) -> None:
    name = f"{MAIN}/fedavg-vhl"
    runs = [digest(name, [0.1] * 3, virtual="noise"), digest(name, [0.3] * 3)]
    assert heights(figure("main", *runs)) == pytest.approx({"FedAvg + VHL": 30})
    runs.append(digest(name, [0.2] * 3, seed=1, virtual="noise"))
    described = figure("main", *runs)
    assert heights(described) == pytest.approx({"FedAvg + VHL": 15})
    assert described.subtitle.endswith("profile paper, virtual data noise")


def test_a_row_that_was_run_otherwise_is_shown_and_named(digest: Callable[..., Digest]) -> None:
    runs = [
        digest(f"{MAIN}/fedavg", [0.1] * 5),
        digest(f"{MAIN}/fedavg-vhl", [0.2] * 5),
        digest(f"{MAIN}/scaffold-vhl", [0.3] * 3, virtual="noise", profile="release"),
    ]
    described = figure("main", *runs)
    assert heights(described) == pytest.approx({"FedAvg": 10, "FedAvg + VHL": 20, "SCAFFOLD + VHL": 30})
    others = "SCAFFOLD + VHL: profile release, virtual data noise"
    assert described.subtitle.endswith(f"profile paper, virtual data stylegan; {others}")


def test_panels_with_other_choices_are_told_apart(digest: Callable[..., Digest]) -> None:
    runs = [
        digest("fmnist/a0.1-e1-k10/fedavg", CURVE),
        digest("fmnist/a0.1-e5-k10/fedavg", CURVE, profile="release"),
        digest("fmnist/a0.1-e1-k100/fedavg", CURVE),
    ]
    assert figure("convergence-fmnist", *runs).subtitle.endswith("(a, d) profile paper\n(c) profile release")


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
            for model in ("server", "client7", "client2", "client9", "client4"):
                for kind, count in (("test", 10), ("virtual", 5))[: 1 + with_virtual]:
                    labels = torch.arange(3).repeat_interleave(count)
                    centres = 100.0 * torch.eye(3, 8).roll(3 * (kind == "virtual"), 1)
                    values = centres[labels] + torch.rand(len(labels), 8, generator=random)
                    tensors |= {f"{model}.{kind}.features": values, f"{model}.{kind}.labels": labels}
            folder.save_features(round_, tensors)
        return folder

    return make


def clouds(panel: Any) -> list[tuple[str, bool, int]]:
    return [(cloud.model, cloud.virtual, len(cloud.classes)) for cloud in panel.clouds]


def titles(described: Figure) -> list[str]:
    return [panel.title or panel.note for panel in described.panels]


def test_features_of_clients(save: Save, tmp_path: Path) -> None:
    """The first three that the file has, in their order; one column, for one round was saved."""
    save(f"{MAIN}/fedavg-vhl", 10, with_virtual=True)
    described = figure("features-clients", runs=tmp_path)
    assert titles(described) == ["not run", "not run", "round 10"] and described.across == 1
    assert [panel.y for panel in described.panels] == ["FedAvg", "FedAvg + naive VHL", "FedAvg + VHL"]
    models = ("client7", "client2", "client9")
    assert clouds(described.panels[2]) == [
        (m, kind, (30, 15)[kind]) for m in models for kind in (False, True)
    ]
    assert described.panels[2].classes == CLASSES and "virtual data stylegan" in described.subtitle


def test_features_as_a_round_leaves_them(
    save: Save, digit_simulation: Callable[..., Simulation], tmp_path: Path
) -> None:
    simulation = digit_simulation(objective="vhl", features_at=(1,))
    simulation.run_round()
    save(f"{MAIN}/fedavg-vhl", 10, with_virtual=True).save_features(10, simulation.snapshot)
    for whose, count in (("clients", 6), ("server", 2)):
        panel = figure(f"features-{whose}", runs=tmp_path).panels[2]
        sizes = {samples for _, _, samples in clouds(panel)}
        assert len(clouds(panel)) == count and sizes.pop() > 0


def test_the_nearest_saved_rounds_are_shown_once(save: Save, tmp_path: Path) -> None:
    save(f"{MAIN}/fedavg", 10, 90, with_virtual=False)
    save("further/naive/fedavg", 12, with_virtual=True)
    expected = ["round 10", "round 90", "round 12", "not run", "not run", "not run"]
    assert titles(figure("features-server", runs=tmp_path)) == expected


def test_a_saved_round_stands_in_its_own_column(save: Save, tmp_path: Path) -> None:
    save(f"{MAIN}/fedavg", 10, 100, 300, with_virtual=False)
    save("further/naive/fedavg", 300, with_virtual=True)
    described = figure("features-server", runs=tmp_path)
    assert titles(described)[3:6] == ["not run", "not run", "round 300"] and described.across == 3


def test_of_several_runs_those_with_the_same_choice(save: Save, tmp_path: Path) -> None:
    save(f"{MAIN}/fedavg", 10, 100, with_virtual=False)
    save(f"{MAIN}/fedavg-vhl", 100, with_virtual=True, profile="release")
    save(f"{MAIN}/fedavg-vhl", 20, with_virtual=True, virtual="noise")
    described = figure("features-server", runs=tmp_path)  # with the profile of FedAvg, not the longer run
    assert titles(described) == ["round 10", "round 100", "not run", "not run", "round 20", "not run"]
    assert described.subtitle.endswith("profile paper, virtual data noise")


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
