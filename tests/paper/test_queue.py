"""What is still to be run, and in which order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import vhl.objectives.vhl
from vhl.experiment import Experiment
from vhl.paper.evidence import Evidence, identity
from vhl.paper.queue import Request, cost, queue, run_name, select
from vhl.paper.row import Row
from vhl.paper.rows import rows
from vhl.runs.digest import Digest

PLAIN, VHL = "cifar10/a0.1-e1-k10/fedavg", "cifar10/a0.1-e1-k10/fedavg-vhl"
Make = Callable[..., Digest]


def request(*names: str, **options: Any) -> Request:
    return Request([rows()[name] for name in names], **options)


def waiting(asked: Request, *digests: Digest) -> list[tuple[str, int, int]]:
    """Name, seed and rounds of what is to be run, in order."""
    found = queue(asked, Evidence(digests))
    return [(label(one), one.seeds.batches, one.rounds) for one in found]


def label(experiment: Experiment) -> str:
    return f"{experiment.data.name} {experiment.algorithm.name} {experiment.objective.name}"


# --- which ---------------------------------------------------------------------------------------------


def test_each_row_with_its_rounds_profile_and_virtual_data() -> None:
    for profile, virtual in (("paper", "stylegan"), ("release", "noise")):
        (one,) = queue(request(VHL, profile=profile, virtual=virtual), Evidence([]))
        assert identity(one) == identity(rows()[VHL].experiment(profile, virtual))  # type: ignore[arg-type]
        assert one.rounds == 1000 and one.name == run_name(one)
    (short,) = queue(request(VHL, rounds=30), Evidence([]))
    assert short.rounds == 30
    (one,) = queue(request("cifar10/a0.1-e5-k10/fedavg"), Evidence([]))
    assert one.rounds == 400


def test_seeds_vary_all_but_the_data() -> None:
    one, other = queue(request(PLAIN, seeds=(4, 2)), Evidence([]))
    assert (one.seeds.model, one.seeds.sampling, one.seeds.batches, one.seeds.data) == (4, 4, 4, 0)
    assert other.seeds.batches == 2


def test_what_was_done_is_not_done_again(digest: Make) -> None:
    done = [digest(PLAIN, [0.1] * 5, 0), digest(PLAIN, [0.1] * 4, 1), digest(VHL, [0.1] * 6, 2)]
    asked = request(PLAIN, VHL, rounds=5, seeds=(0, 1, 2))
    plain, vhl = "cifar10 fedavg plain", "cifar10 fedavg vhl"
    assert waiting(asked, *done) == [(vhl, 0, 5), (plain, 1, 5), (vhl, 1, 5), (plain, 2, 5)]
    assert waiting(request(PLAIN, rounds=4, seeds=(0, 1)), *done) == []
    assert waiting(request(PLAIN), *done) == [(plain, 0, 1000)]


def test_what_was_done_with_another_profile_or_generator_is(digest: Make) -> None:
    done = [digest(name, [0.1], profile="release", virtual="noise") for name in (PLAIN, VHL)]
    assert len(waiting(request(PLAIN, VHL, rounds=1), *done)) == 2
    assert len(waiting(request(PLAIN, VHL, rounds=1, profile="release"), *done)) == 1
    assert waiting(request(PLAIN, VHL, rounds=1, profile="release", virtual="noise"), *done) == []


def test_an_experiment_that_several_rows_ask_for_is_run_once() -> None:
    same = [VHL, *(f"further/{kind}/fedavg" for kind in ("vhl", "batch-128", "lambda-1.0", "resnet18-vhl"))]
    assert len(waiting(request(*same, seeds=(0, 1)))) == 2
    assert len(waiting(request(*same, "further/noise/fedavg"))) == 2
    assert len(waiting(request(*same, "further/noise/fedavg", virtual="noise"))) == 1


def test_the_whole_paper() -> None:
    experiments = queue(Request(list(rows().values())), Evidence([]))
    assert len(experiments) == 276 + 4 + 6 + 16 + 31 + 37 - 36  # with ours, without what is there twice
    names = {one.name for one in experiments}
    assert len(names) == len(experiments) and all(re.fullmatch(r"[\w.-]+", name) for name in names)


# --- in which order ------------------------------------------------------------------------------------


def test_every_row_once_before_any_is_run_again() -> None:
    found = waiting(request("svhn/a0.1-e1-k100/fedavg", VHL, PLAIN, seeds=(7, 3)))
    assert [seed for _, seed, _ in found] == [7, 7, 7, 3, 3, 3]
    assert [name for name, _, _ in found[:3]] == [name for name, _, _ in found[3:]]


def test_cheap_rows_go_first() -> None:
    three = [f"{dataset}/a0.1-e1-k10/fedavg" for dataset in ("svhn", "cifar10", "fmnist")]
    for order in itertools.permutations(three):
        found = [name.split()[0] for name, _, _ in waiting(request(*order))]
        assert found == ["cifar10", "fmnist", "svhn"]


def test_a_row_comes_after_the_row_that_it_is_compared_with() -> None:
    algorithms = ("fedavg", "fedprox", "scaffold", "fednova")
    names = [f"cifar10/a0.1-e1-k10/{name}{kind}" for name in algorithms for kind in ("-vhl", "")]
    found = [name for name, _, _ in waiting(request(*names))]
    for name in algorithms:
        assert found.index(f"cifar10 {name} plain") < found.index(f"cifar10 {name} vhl")


@pytest.mark.parametrize(
    ("name", "images"),
    [
        (PLAIN, 50_000 * 1000 / 2),
        (VHL, 50_000 * 1000),
        ("cifar10/a0.1-e1-k100/fedavg", 50_000 * 1000 / 10),
        ("cifar10/a0.1-e5-k10/fedavg", 50_000 * 400 * 5 / 2),
        ("fmnist/a0.1-e1-k10/fedavg", 60_000 * 1000 / 2),
        ("svhn/a0.1-e1-k10/fedavg", 73_257 * 1000 / 2),
        ("further/batch-64/fedavg", 25_000_000 * 1.5),
        ("further/batch-384/fedavg", 25_000_000 * 4),
        ("further/naive/fedavg", 50_000_000),
        ("further/vfa/fedavg", 25_000_000),
        ("further/vftl/fedavg", 25_000_000),
        ("further/lambda-0.5/fedavg", 50_000_000),
        ("centralized/cifar10/plain", 50_000_000),
        ("light/vhl-light/fedavg", 25_000 * 300 * 1.25),
        ("feddf/a0.1/fedavg", 0.022 * 100 * 50_000 * 40 * 8 / 20),
        ("feddf/a0.1/feddf-real-2000", 0.022 * 100 * (50_000 * 40 * 8 / 20 + 2_000 * 64 * (1 + 8 / 3))),
    ],
)
def test_images_that_a_row_trains_on(name: str, images: float) -> None:
    assert cost(rows()[name]) == pytest.approx(images)


def test_statistics_cannot_be_fixed_after_the_last_round(complains: Any) -> None:
    fixed = select(["light/fixed-statistics"])
    with complains("light/fixed-statistics/plain", "freeze_batch_norm = 150", "--rounds"):
        queue(Request(fixed, rounds=150), Evidence([]))
    with complains("light/lower-rate/plain", "lr_drops = 150", "--rounds"):
        queue(Request(select(["light/lower-rate"]), rounds=150), Evidence([]))
    assert len(queue(Request(fixed, rounds=151), Evidence([]))) == 4


@pytest.mark.parametrize(
    ("network", "name"),
    [
        ("resnet10", "further/resnet10/fedavg"),
        ("resnet34", "further/resnet34/fedavg"),
        ("resnet50", "cifar100/a0.1-e1-k10/fedavg"),
    ],
)
def test_larger_networks_cost_more(network: str, name: str) -> None:
    """As PyTorch counts a forward pass."""
    ratio = flops(network) / flops("resnet18")
    assert cost(rows()[name]) / cost(rows()[PLAIN]) == pytest.approx(ratio, rel=0.03)


@cache
def flops(network: str) -> int:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Experiment(model=network).model.build(10, 3, (32, 32)).eval()(torch.zeros(1, 3, 32, 32))
    return int(counter.get_total_flops())


# --- names of rows and of runs -------------------------------------------------------------------------


def names(found: list[Row]) -> set[str]:
    return {row.name for row in found}


def test_rows_by_name_beginning_and_pattern() -> None:
    assert names(select([PLAIN])) == {PLAIN}  # not fedavg-vhl, which begins so too
    assert len(select(["cifar10"])) == 32 and len(select(["cifar100"])) == 32
    algorithms = {"fedavg", "fedprox", "scaffold", "fednova"}
    assert names(select(["further/naive"])) == {f"further/naive/{name}" for name in algorithms}
    found = select(["*/a0.1-e1-k10/fedavg*"])
    assert len(found) == 8 and {row.table for row in found} == {"cifar10", "fmnist", "svhn", "cifar100"}
    assert len(select([PLAIN, "cifar10/a0.1-e1-k10", PLAIN])) == 8  # each once


@pytest.mark.parametrize("pattern", ["cifar10/a0.1-e1-k10/fedavgs", "cifar10/a0.1-e1-k10/FedAvg"])
def test_a_row_that_does_not_exist(complains: Any, pattern: str) -> None:
    with complains(repr(pattern), repr(PLAIN)):
        select([pattern])


@pytest.mark.parametrize("pattern", ["", "cifar", "qqqqqq", "*/nothing"])
def test_nothing_near_a_row_that_does_not_exist(complains: Any, pattern: str) -> None:
    with complains(repr(pattern)):
        select(["cifar10", pattern])


def test_a_run_has_one_name_whichever_row_asks_for_it() -> None:
    experiment = rows()[VHL].experiment()
    assert run_name(experiment) == run_name(rows()["further/lambda-1.0/fedavg"].experiment())
    assert run_name(experiment.with_(rounds=3, device="cpu", name="x")) == run_name(experiment)
    pattern = r"cifar10-lda-resnet18-fedavg-vhl-stylegan-paper-[0-9a-f]{8}-seed0"
    assert re.fullmatch(pattern, run_name(experiment))
    plain = run_name(rows()[PLAIN].experiment("release"))
    assert re.fullmatch(r"cifar10-lda-resnet18-fedavg-plain-release-[0-9a-f]{8}-seed0", plain)


def test_an_option_that_was_added_later_renames_no_run() -> None:
    class Grown(vhl.objectives.vhl.VHL):
        added: int = 3

    experiment = rows()[VHL].experiment()
    objective = Grown.model_construct(**dict(experiment.objective))
    grown = experiment.model_copy(update={"objective": objective})
    assert identity(grown) != identity(experiment) and run_name(grown) == run_name(experiment)
    used = objective.model_copy(update={"added": 4})
    assert run_name(experiment.model_copy(update={"objective": used})) != run_name(experiment)


def test_two_rows_that_are_one_run_save_what_either_wants() -> None:
    (run,) = queue(request("further/lambda-1.0/fedavg", VHL), Evidence([]))
    wanted = rows()[VHL].experiment()
    assert wanted.keep_at and (run.features_at, run.keep_at) == (wanted.features_at, wanted.keep_at)
    (run,) = queue(request("search/fedadam/server_lr-0.01", "methods/fedadam/plain"), Evidence([]))
    assert run.rounds == 200  # the search is the beginning of it


@pytest.mark.parametrize(
    "settings",
    [
        {"seeds": {"batches": 1}},
        {"profile": "release"},
        {"partition": {"alpha": 0.2}},
        {"objective": {"calibration": 0.5}},
        {"virtual": {"per_class": 7}},
        {"training": {"lr": 0.02}},
    ],
)
def test_another_experiment_has_another_name(settings: dict[str, Any]) -> None:
    experiment = rows()[VHL].experiment()
    assert run_name(experiment.with_(**settings)) != run_name(experiment)


def test_pairs_are_completed() -> None:
    asked = Request(select(["cifar10/a0.1-e1-k10", "further/resnet34*"]))
    found = [f"{e.model.name} {e.objective.name}" for e in queue(asked, Evidence([]))]
    assert found.index("resnet34 plain") > found.index("resnet18 vhl") > found.index("resnet18 plain")
