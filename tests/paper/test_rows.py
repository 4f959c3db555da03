"""Rows of the paper: their settings, and which of them are one and the same experiment."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from vhl.experiment import Experiment, dotted
from vhl.objectives.naive import Naive
from vhl.paper.evidence import identity
from vhl.paper.published import published
from vhl.paper.row import Row
from vhl.paper.rows import TABLES, rows

ALGORITHMS = ("fedavg", "fedprox", "scaffold", "fednova")
DATASETS = ("cifar10", "fmnist", "svhn", "cifar100")
MAIN = ("a0.1-e1-k10", "a0.05-e1-k10", "a0.1-e5-k10", "a0.1-e1-k100")
KINDS = ("acc_plain", "acc_vhl")
EQUAL_TO_VHL = ("vhl", "batch-128", "lambda-1.0", "tap-last", "resnet18-vhl")
SAVED = {"features_at", "keep_at"}
VARIANTS = list(dict.fromkeys(name.split("/")[1] for name in rows() if name.startswith("further/")))


def settings(name: str, *keys: str) -> tuple[Any, ...]:
    """Some of a row's settings, by their dotted names."""
    found = dotted(rows()[name].experiment())
    return tuple(found[key] for key in keys)


def same(*names: str, virtual: str = "stylegan") -> bool:
    return len({identity(rows()[name].experiment("paper", virtual)) for name in names}) == 1


# --- all of them ---------------------------------------------------------------------------------------


def test_as_many_as_the_paper_has_numbers() -> None:
    main = dict.fromkeys(DATASETS, 4 * 4 * 2)
    ours = {name for name, row in rows().items() if row.accuracy is None}
    ours -= {"feddf/a0.1/feddf-noise"}  # which the paper leaves blank
    tables = Counter(row.table for name, row in rows().items() if name not in ours)
    assert tables == {**main, "partitions": 16, "further": 116, "feddf": 8, "centralized": 8}
    assert [*tables, "choices", "methods", "search", "light"] == list(TABLES)
    assert len(rows()) == 276 + 4 + 6 + 16 + 31 + 37
    assert {name.split("/")[0] for name in ours} >= {"choices", "methods", "search", "light"}
    assert all(name == row.name for name, row in rows().items())


def test_every_published_number_is_in_one_row() -> None:
    paper = published()
    numbers = [cell[kind] for part in ("main", "partitions") for cell in paper[part] for kind in KINDS]
    numbers += [cell["acc"] for part in ("further", "feddf") for cell in paper[part]]
    numbers += [accuracy for pair in paper["centralized"].values() for accuracy in pair.values()]
    assert Counter(row.accuracy for row in rows().values()) == Counter([*numbers, *[None] * 94])  # ours


@pytest.mark.parametrize("profile", ["paper", "release"])
@pytest.mark.parametrize("virtual", ["stylegan", "noise"])
def test_every_row_is_an_experiment(profile: Any, virtual: str) -> None:
    for row in rows().values():
        experiment = row.experiment(profile, virtual)
        assert experiment.profile == profile and Experiment(**experiment.table()) == experiment
        assert experiment.sampling == ("legacy" if profile == "release" else "uniform")
        if row.uses_generator:
            assert experiment.virtual.name == virtual and experiment.objective.uses_virtual


def test_rows_that_others_are_measured_by() -> None:
    """FedAvg, or the row's own algorithm, in the same setting and without virtual data."""
    for row in rows().values():
        baseline, without = rows()[row.baseline], rows()[row.without] if row.without else None
        assert baseline.settings["objective"] == "plain" and algorithm(baseline) == "fedavg"
        assert baseline.baseline == baseline.name and baseline.without is None
        others = ["data", "partition", "model", "clients_per_round"]
        assert all(baseline.settings[key] == row.settings[key] for key in others)
        if row.settings["objective"] == "plain" and algorithm(row) != "feddf":
            assert without is None
        else:
            assert without is not None and without.settings["objective"] == "plain"
            assert algorithm(without) == algorithm(row).replace("feddf", "fedavg")
            assert all(without.settings[key] == row.settings[key] for key in others)


def algorithm(row: Row) -> str:
    return row.experiment().algorithm.name


# --- the main tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("setting", MAIN)
def test_settings_of_the_main_tables(dataset: str, setting: str) -> None:
    alpha, epochs, clients = setting.removeprefix("a").split("-")
    for name in ALGORITHMS:
        for kind in ("", "-vhl"):
            experiment = rows()[f"{dataset}/{setting}/{name}{kind}"].experiment()
            found = dotted(experiment)
            assert found["data.name"] == dataset and found["algorithm.name"] == name
            assert found["objective.name"] == ("vhl" if kind else "plain")
            assert found["partition.name"] == "lda" and found["partition.alpha"] == float(alpha)
            assert found["partition.clients"] == int(clients[1:])
            assert found["training.epochs"] == int(epochs[1:])
            assert experiment.rounds == (400 if epochs == "e5" else 1000)
            assert experiment.clients_per_round == (10 if clients == "k100" else 5)
            assert experiment.model.name == ("resnet50" if dataset == "cifar100" else "resnet18")
            assert experiment.training.batch_size == 128 and experiment.evaluate_every == 1


def test_numbers_stand_by_the_right_rows() -> None:
    plain, vhl = (rows()[f"cifar10/a0.1-e1-k10/fedavg{kind}"] for kind in ("", "-vhl"))
    assert (plain.accuracy, plain.rounds, plain.target) == (79.98, 287, 79.0)
    assert (vhl.accuracy, vhl.rounds, vhl.target) == (87.82, 128, 79.0)
    assert vhl.without == plain.name and vhl.baseline == plain.baseline == plain.name
    other = rows()["cifar10/a0.05-e1-k10/scaffold-vhl"]
    assert (other.accuracy, other.rounds, other.target) == (55.73, None, 69.0)
    assert other.without == "cifar10/a0.05-e1-k10/scaffold"
    assert other.baseline == "cifar10/a0.05-e1-k10/fedavg"


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("fmnist/a0.05-e1-k10/fednova", (0.0001, 0.001)),
        ("svhn/a0.05-e1-k10/scaffold", (0.001, 0.01)),
        ("svhn/a0.1-e1-k100/fednova", (0.0001, 0.001)),
        ("cifar10/a0.1-e1-k100/scaffold", (0.0001, 0.0001)),
    ],
)
def test_learning_rates(name: str, rates: tuple[float, float]) -> None:
    assert tuple(rows()[f"{name}{kind}"].experiment().training.lr for kind in ("", "-vhl")) == rates


def test_partitions_of_cifar10() -> None:
    for name in ALGORITHMS:
        for kind in ("", "-vhl"):
            classes, subset = (f"partitions/{part}/{name}{kind}" for part in ("classes-2", "subset"))
            keys = ("partition.name", "partition.clients", "data.name", "training.lr", "clients_per_round")
            assert settings(classes, *keys) == ("classes", 10, "cifar10", 0.01, 5)
            assert settings(subset, *keys) == ("subset", 10, "cifar10", 0.01, 5)
            assert settings(classes, "partition.per_client") == (2,)


# --- the further study ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("baseline", {"objective.name": "plain"}),
        ("vhl", {"objective.name": "vhl", "virtual.name": "stylegan"}),
        ("vftl", {"objective.name": "vftl", "virtual.name": "stylegan"}),
        ("naive", {"objective.name": "naive", "virtual.name": "stylegan"}),
        ("vfa", {"objective.name": "vfa"}),
        ("noise", {"objective.name": "vhl", "virtual.name": "noise"}),
        ("decoder", {"objective.name": "vhl", "virtual.name": "decoder"}),
        ("tiny-imagenet", {"virtual.name": "dataset", "virtual.source.name": "tiny-imagenet"}),
        *((f"batch-{size}", {"objective.virtual_batch": size}) for size in (64, 256, 384)),
        *((f"lambda-{weight}", {"objective.calibration": weight}) for weight in (0.1, 0.2, 0.5, 2.0, 10.0)),
        ("tap-shallow", {"objective.tap": "stage2"}),
        ("tap-middle", {"objective.tap": "stage3"}),
        ("tap-deep", {"objective.tap": "stage4"}),
        ("tap-last", {"objective.tap": "last"}),
        *((f"resnet{n}", {"model.name": f"resnet{n}", "objective.name": "plain"}) for n in (10, 18, 34)),
        *((f"resnet{n}-vhl", {"model.name": f"resnet{n}", "objective.name": "vhl"}) for n in (10, 18, 34)),
    ],
)
def test_variants_of_the_further_study(name: str, variant: str, expected: dict[str, Any]) -> None:
    """They differ from the main experiment in what the variant is about, and in nothing else."""
    row = rows()[f"further/{variant}/{name}"]
    found = dotted(row.experiment())
    assert {key: found[key] for key in expected} == expected
    plain = found["objective.name"] == "plain"
    main = rows()[f"cifar10/a0.1-e1-k10/{name}{'' if plain else '-vhl'}"].experiment()
    changed = {key.split(".")[0] for key in expected}
    differing = {key.split(".")[0] for key, value in dotted(main).items() if found.get(key) != value}
    assert differing - SAVED <= changed | ({"virtual"} if variant == "vfa" else set())


def test_the_virtual_batch_of_128_is_the_natural_batch() -> None:
    keys = "objective.virtual_batch", "training.batch_size"
    assert settings("further/batch-128/fedavg", *keys) == (None, 128)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_that_are_the_same_experiment(name: str) -> None:
    further = {variant: f"further/{variant}/{name}" for variant in VARIANTS}
    plain, vhl = f"cifar10/a0.1-e1-k10/{name}", f"cifar10/a0.1-e1-k10/{name}-vhl"
    assert same(plain, further["baseline"], further["resnet18"])
    equal = [further[variant] for variant in EQUAL_TO_VHL]
    assert same(vhl, *equal)
    assert same(vhl, further["noise"], virtual="noise") and same(vhl, further["decoder"], virtual="decoder")
    assert same(vhl, further["tiny-imagenet"], virtual="dataset:tiny-imagenet")
    others = [further[v] for v in VARIANTS if v not in ("baseline", "resnet18", *EQUAL_TO_VHL)]
    assert len({identity(rows()[other].experiment()) for other in [plain, vhl, *others]}) == 2 + len(others)


def test_rows_that_are_the_same_experiment_have_the_same_published_number() -> None:
    numbers: dict[str, set[float | None]] = {}
    for row in rows().values():
        numbers.setdefault(identity(row.experiment()), set()).add(row.accuracy)
    assert all(len(found) == 1 for found in numbers.values())
    twice = 4 * 7 + 8  # each algorithm has seven, and of each that is searched for one value is the row's
    assert len(numbers) == len(rows()) - twice


_SHARE, _TILES, _IMAGES = "objective.batch_norm_share", "objective.mosaic", "objective.virtual_batch"
_PULL, _PULL_AMONG, _CROSS = (
    f"objective.{name}" for name in ("calibration", "virtual_calibration", "virtual_weight")
)
_PLAIN, _LIGHT = "cifar10/a0.1-e1-k10/fedavg", "light/vhl-light/fedavg"
_VHL = f"{_PLAIN}-vhl"


@pytest.mark.parametrize(
    ("row", "base", "expected"),
    [
        ("choices/init-he/fedavg", _PLAIN, {"model.init": "he"}),
        ("choices/init-he/fedavg-vhl", _VHL, {"model.init": "he"}),
        ("choices/partition-1/fedavg", _PLAIN, {"seeds.data": 1}),
        ("choices/partition-1/fedavg-vhl", _VHL, {"seeds.data": 1}),
        ("choices/few-images/fedavg-vhl", _VHL, {"virtual.per_class": 200}),
        ("choices/shared-labels/fedavg-vhl", _VHL, {"objective.shared_labels": True}),
        (_LIGHT, _VHL, {"objective.name": "vhl-light", _TILES: 2, _SHARE: 0.5, "rounds": 300}),
        ("light/group-norm/vhl-light", _LIGHT, {"model.norm": "group"}),
        ("light/lower-rate/vhl-light", _LIGHT, {"training.lr_drops": [150]}),
        ("light/fixed-usual-rate/vhl-light", _LIGHT, {"training.freeze_batch_norm": 150}),
        (
            "light/fixed-statistics/vhl-light",
            _LIGHT,
            {"training.freeze_batch_norm": 150, "training.lr_drops": [150]},
        ),
        ("light/share-alone/fedavg", _LIGHT, {"objective.name": "vhl", _TILES: 1, _IMAGES: 32}),
        ("light/mosaic-alone/fedavg", _LIGHT, {"objective.name": "vhl", _SHARE: None}),
        ("light/share-0.75/fedavg", _LIGHT, {_SHARE: 0.75}),
        ("light/same-class/fedavg", _LIGHT, {"objective.mosaic_classes": "same"}),
        ("light/half/fedavg", _LIGHT, {_IMAGES: 64}),
        ("light/half-no-virtual-loss/fedavg", _LIGHT, {_IMAGES: 64, _CROSS: 0}),
        ("light/quarter/fedavg", _LIGHT, {_IMAGES: 32}),
        ("light/quarter-no-virtual-loss/fedavg", _LIGHT, {_IMAGES: 32, _CROSS: 0}),
        ("light/4x4/fedavg", _LIGHT, {_TILES: 4}),
        ("light/four-times/fedavg", _LIGHT, {"objective.name": "vhl", _SHARE: None, _IMAGES: 512}),
        ("light/no-supcon/fedavg", _LIGHT, {_PULL: 0, _PULL_AMONG: 0}),
        ("light/no-virtual-loss/fedavg", _LIGHT, {_CROSS: 0}),
    ],
)
def test_a_row_of_ours_changes_what_its_name_says(row: str, base: str, expected: dict[str, Any]) -> None:
    usual, other = (dotted(rows()[name].experiment("release", "noise")) for name in (base, row))
    changed = {key for key in usual.keys() | other.keys() if other.get(key) != usual.get(key)}
    assert {key: other.get(key) for key in changed - SAVED} == expected
    assert rows()[row].accuracy is None


def test_what_rows_of_ours_are_compared_with() -> None:
    assert rows()["choices/init-he/fedavg-vhl"].without == "choices/init-he/fedavg"
    assert rows()["choices/few-images/fedavg-vhl"].without == _PLAIN
    assert rows()["light/svhn-a0.1-e1-k10/fedavg"].without == "svhn/a0.1-e1-k10/fedavg"


def test_statistics_alone_have_no_loss_of_virtual_images() -> None:
    objective = rows()["light/statistics-alone/fedavg"].experiment("release", "noise").objective
    assert objective == Naive(mosaic=2, batch_norm_share=0.5, virtual_weight=0)


def test_features_are_kept_where_the_paper_shows_them() -> None:
    shown = {name for name, row in rows().items() if "features_at" in row.settings}
    main = {f"cifar10/a0.1-e1-k10/fedavg{kind}" for kind in ("", "-vhl")}
    assert shown >= main | {f"further/{variant}/fedavg" for variant in ("baseline", "vhl", "naive")}
    assert rows()["further/naive/fedavg"].experiment().features_at == (10, 100, 300, 1000)
    assert all({10, 100, 300, 1000} <= set(rows()[name].settings["keep_at"]) for name in shown)


# --- FedDF's setting, and all data in one place --------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_the_setting_of_feddf(alpha: float) -> None:
    """Lin et al., NeurIPS 2020: ResNet-8, 8 of 20 clients, 100 rounds, 40 epochs, plain SGD, batch 64."""
    for kind in ("fedavg", "fedavg-vhl", "feddf-real", "feddf-noise"):
        row = rows()[f"feddf/a{alpha}/{kind}"]
        assert row.without == (None if kind == "fedavg" else f"feddf/a{alpha}/fedavg")
    keys = ("partition.alpha", "partition.clients", "clients_per_round", "rounds", "model.name")
    assert settings(f"feddf/a{alpha}/fedavg-vhl", *keys) == (alpha, 20, 8, 100, "resnet8")
    keys = ("epochs", "batch_size", "lr", "lr_decay", "momentum", "weight_decay", "keep_momentum")
    found = settings(f"feddf/a{alpha}/fedavg", *(f"training.{key}" for key in keys))
    assert found == (40, 64, 0.1, 1.0, 0.0, 0.0, False)
    names = "algorithm.name", "algorithm.weighting", "objective.name"
    assert settings(f"feddf/a{alpha}/fedavg", *names) == ("fedavg", "uniform", "plain")
    assert settings(f"feddf/a{alpha}/fedavg-vhl", *names) == ("fedavg", "uniform", "vhl")
    distilled = (
        "algorithm.name",
        "algorithm.weighting",
        "algorithm.steps",
        "data.validation",
        "objective.name",
    )
    for kind in ("real", "noise"):
        for suffix, steps in (("", 10_000), ("-2000", 2_000)):
            found = settings(f"feddf/a{alpha}/feddf-{kind}{suffix}", *distilled)
            assert found == ("feddf", "uniform", steps, 0.1, "plain")
    images = "algorithm.images.name", "algorithm.images.source.name", "algorithm.images.classes"
    assert settings(f"feddf/a{alpha}/feddf-real", *images) == ("dataset", "cifar100", None)  # all of them
    release = rows()[f"feddf/a{alpha}/fedavg"].experiment("release")
    assert not release.training.keep_momentum  # FedDF's choice, whatever the authors of VHL did elsewhere


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("objective", ["plain", "vhl"])
def test_all_data_in_one_place(dataset: str, objective: str) -> None:
    experiment = rows()[f"centralized/{dataset}/{objective}"].experiment()
    assert (experiment.data.name, experiment.partition.name) == (dataset, "centralized")
    assert (experiment.objective.name, experiment.clients_per_round) == (objective, 1)
    assert experiment.model.name == ("resnet50" if dataset == "cifar100" else "resnet18")
    assert experiment.training.keep_momentum and experiment.rounds == 1000
    assert rows()[f"centralized/{dataset}/vhl"].without == f"centralized/{dataset}/plain"


def test_centralised_numbers() -> None:
    found = {name: row.accuracy for name, row in rows().items() if row.table == "centralized"}
    assert found["centralized/cifar100/plain"] == 74.25 and found["centralized/cifar100/vhl"] == 71.9
    assert math.isclose(sum(value or 0 for value in found.values()), 709.34)
