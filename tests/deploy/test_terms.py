from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vhl.config.listing import available
from vhl.data.images import Dataset, ImageSet
from vhl.deploy.terms import Facts, Terms, agree, read_experiment
from vhl.deploy.wire import RefusedError
from vhl.errors import VHLError
from vhl.experiment import Experiment

EXPERIMENT = Experiment(objective="plain", device="cpu")


def images(labels: list[int], size: int = 4, channels: int = 1, seed: int = 0) -> ImageSet:
    rng = np.random.default_rng([seed, len(labels), channels])
    # one channel darker than the other, so that they cannot be confused
    pixels = rng.integers(0, 256, (len(labels), size, size, channels)) // np.arange(1, channels + 1)
    return ImageSet(pixels.astype(np.uint8), np.array(labels, np.int64))


def dataset(
    train: list[int],
    classes: Sequence[str] = "abc",
    *,
    test: tuple[int, ...] = (0,),
    validation: tuple[int, ...] | None = None,
    **options: Any,
) -> Dataset:
    return Dataset(
        images(train, **options),
        images(list(test), **options),
        tuple(classes),
        validation=None if validation is None else images(list(validation), **options),
    )


def facts(**changes: Any) -> dict[str, Any]:
    """What a site with three grey images of 4×4 pixels, each of value 100, says."""
    return {
        "name": "site",
        "classes": ["a", "b"],
        "train": [2, 1],
        "test": [0, 1],
        "validation": [0, 0],
        "shape": [4, 4, 1],
        "sums": [4_800],
        "squares": [480_000],
        **changes,
    }


@pytest.mark.parametrize("channels", [1, 3])
def test_facts_are_counts_and_sums(channels):
    own = dataset([0, 2, 2, 2, 0], test=(1, 1, 2), validation=(0,), size=5, channels=channels)
    said = Facts.of("site-1", own)
    assert (said.train, said.test, said.validation) == ([2, 0, 3], [0, 2, 1], [1, 0, 0])
    assert said.classes == ["a", "b", "c"] and said.shape == [5, 5, channels] and said.name == "site-1"
    pixels = own.train.images.astype(object)
    assert said.sums == [pixels[..., c].sum() for c in range(channels)]
    assert said.squares == [(pixels[..., c] ** 2).sum() for c in range(channels)]
    assert Facts.read(json.loads(json.dumps(said.model_dump()))) == said


def test_facts_without_validation_images_count_none():
    assert Facts.of("site", dataset([0, 1])).validation == [0, 0, 0]


def test_the_usual_facts_of_these_tests_are_taken():
    assert Facts.read(facts()).sums == [4_800]


WRONG: dict[str, list[Any]] = {
    "name": ["", "../site", ".hidden", "a b", "site\n", "a/b", "x" * 65, 7],
    "classes": [[], ["a", "a"], ["a", 2], ["a", "b", "c"], "ab", ["a", "9" * 5_000]],
    "train": [[3], [2, 1, 0], [4, -1], [2.0, 1], ["2", 1], [True, 2], 3, [10**200, 1]],
    "test": [[1], [-1, 2], [10**30, 0]],
    "validation": [[], [0, -1]],
    "shape": [[4, 4], [4, 4, 1, 1], [3, 4, 1], [4, 4097, 1], [-4, -4, 1], [4, 4, 3]],
    "sums": [[], [1, 1], [-1], [255 * 48 + 1], [4800.0]],
    "squares": [
        [],
        [-1],
        [0],
        [479_999],  # (Σx)² ≤ nΣx²: less would be a deviation below zero
        [255 * 4_800 + 1],  # Σx² ≤ 255 Σx
    ],
    "extra": [1, "/somewhere"],
}
ALSO_WRONG: list[dict[str, Any]] = [
    {"train": [0, 0], "sums": [0], "squares": [0]},
    {"train": [10**15, 1], "sums": [0], "squares": [0]},  # the server numbers every image
    {"shape": [4, 4, 2], "sums": [1, 1], "squares": [1, 1]},
    {"sums": [0], "squares": [1]},
]


@pytest.mark.parametrize(
    "changes",
    [*({key: value} for key, values in WRONG.items() for value in values), *ALSO_WRONG],
    ids=lambda c: str(c)[:40],
)
def test_wrong_facts_are_refused(changes):
    with pytest.raises(RefusedError, match=r"^facts"):
        Facts.read(facts(**changes))


@pytest.mark.parametrize("key", facts())
def test_facts_must_be_complete(key):
    with pytest.raises(RefusedError, match=rf"^facts\.{key}"):
        Facts.read({k: v for k, v in facts().items() if k != key})


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from([*facts(), "more"]),
        st.one_of(
            st.none(),
            st.integers(-(10**30), 10**30),
            st.floats(),
            st.text(max_size=5),
            st.lists(st.one_of(st.integers(-(10**25), 10**25), st.text(max_size=3)), max_size=4),
        ),
    )
)
def test_any_facts_are_refused_or_hold(changes):
    try:
        own = Facts.read(facts(**changes))
    except RefusedError:
        return
    pixels = sum(own.train) * own.shape[0] * own.shape[1]
    assert len(own.classes) == len(own.train) == len(own.test) == len(own.validation)
    assert all(0 <= total <= 255 * pixels for total in own.sums) and pixels > 0
    assert len(own.sums) == len(own.squares) == own.shape[2]


def agreed(*sets: Dataset, classes: tuple[str, ...] = (), **settings: Any) -> tuple[Terms, np.ndarray]:
    experiment = EXPERIMENT.with_(**settings) if settings else EXPERIMENT
    return agree("run", experiment, [Facts.of(f"site{i}", own) for i, own in enumerate(sets)], classes)


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_and_deviation_are_those_of_all_images_together(channels):
    parts = [dataset([0] * n, channels=channels, seed=n) for n in (1, 7, 30)]
    terms, counts = agreed(*parts)
    pooled = np.concatenate([own.train.images for own in parts]) / 255
    np.testing.assert_allclose(terms.mean, pooled.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(terms.std, pooled.std((0, 1, 2)), rtol=1e-12)
    assert terms.shape == (4, 4, channels) and counts.tolist() == [[1, 0, 0], [7, 0, 0], [30, 0, 0]]
    mean, std = EXPERIMENT.data.statistics(np.concatenate([own.train.images for own in parts]))
    np.testing.assert_allclose(terms.statistics, (mean, std), rtol=1e-12)


def test_grey_counts_in_every_channel_beside_colour():
    grey, colour = dataset([0, 1], channels=1), dataset([2] * 5, channels=3)
    terms, _ = agreed(grey, colour)
    assert terms.shape == (4, 4, 3)
    pooled = np.concatenate([grey.train.images.repeat(3, -1), colour.train.images]) / 255
    np.testing.assert_allclose(terms.mean, pooled.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(terms.std, pooled.std((0, 1, 2)), rtol=1e-12)
    assert len(set(terms.mean)) == 3


def test_constant_images_can_be_divided_by_their_deviation():
    flat = ImageSet(np.full((3, 4, 4, 1), 77, np.uint8), np.array([0, 1, 1]))
    terms, _ = agreed(Dataset(flat, flat, ("a", "b")))
    assert terms.mean == (pytest.approx(77 / 255),) and terms.std == (1e-6,)


def test_almost_constant_images_keep_their_deviation():
    """One pixel of a million: a difference of large numbers, which must not vanish."""
    pixels = np.full((60, 128, 128, 1), 255, np.uint8)
    pixels[0, 0, 0, 0] = 254
    whole = ImageSet(pixels, np.zeros(60, np.int64))
    terms, _ = agreed(Dataset(whole, whole, ("a",)))
    n = pixels.size
    assert terms.std == (pytest.approx(np.sqrt((n - 1) / n**2) / 255, rel=1e-9),)


def test_sites_stand_in_the_order_of_their_names():
    named = {"b": dataset([0]), "a": dataset([1, 1]), "B": dataset([2, 2, 2])}
    terms, counts = agree("run", EXPERIMENT, [Facts.of(name, own) for name, own in named.items()])
    assert terms.sites == ("B", "a", "b")
    assert counts.tolist() == [[0, 0, 3], [0, 2, 0], [1, 0, 0]]
    again, _ = agree("run", EXPERIMENT, [Facts.of(name, named[name]) for name in ("a", "B", "b")])
    assert again == terms


@pytest.mark.parametrize(
    ("lists", "given", "classes", "counts"),
    [
        (["zax", "zax"], "", "zax", [[1, 0, 0], [1, 0, 0]]),  # one list that all have keeps its order
        (["bd", "a", "zca"], "", "abcdz", [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]),
        ([("10", "9", "x"), ("100",)], "", ("9", "10", "100", "x"), [[0, 1, 0, 0], [0, 0, 1, 0]]),
        (["ba", "c"], ("c", "nobody", "b", "a"), ("c", "nobody", "b", "a"), [[0, 0, 1, 0], [1, 0, 0, 0]]),
    ],
    ids=["the same", "different", "numbers", "given"],
)
def test_classes_are_put_together(lists, given, classes, counts):
    """Each site has one image, of the first class of its list."""
    terms, found = agreed(*(dataset([0], own) for own in lists), classes=tuple(given))
    assert terms.classes == tuple(classes) and found.tolist() == counts


def test_a_class_that_is_not_in_the_given_list_is_named(complains):
    with complains("b of site0", "a of site1"):
        agreed(dataset([0, 1], "cb"), dataset([0], "a"), classes=("c",))


def test_a_class_given_twice_is_an_error():
    with pytest.raises(VHLError):
        agreed(dataset([0, 1], "ab"), classes=("a", "b", "a"))


def test_images_of_different_sizes_are_an_error(complains):
    with complains("(4, 4)", "(6, 6)", "data.size"):
        agreed(dataset([0], size=4), dataset([0], size=6))


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.25,)), ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))])
def test_mean_and_deviation_may_be_set(mean, std):
    data = {"name": "digits", "mean": mean, "std": std}
    terms, _ = agreed(dataset([0, 1], channels=3), data=data)
    assert terms.mean == tuple(np.broadcast_to(mean, 3)) and terms.std == tuple(np.broadcast_to(std, 3))


def test_one_of_them_may_be_set():
    own = dataset([0, 1])
    terms, _ = agreed(own, data={"name": "digits", "mean": [0.5]})
    assert terms.mean == (0.5,) and terms.std == (pytest.approx((own.train.images / 255).std()),)


@pytest.mark.parametrize("key", ["mean", "std"])
def test_too_many_of_them_are_an_error(complains, key):
    with complains(key, "3", "1 channels"):
        agreed(dataset([0, 1]), data={"name": "digits", key: [0.1, 0.2, 0.3]})


def test_terms_come_back_to_the_bit():
    settings: dict[str, Any] = {
        "algorithm": {"name": "feddf", "images": {"name": "noise", "per_class": 3}},
        "virtual": {"name": "dataset", "source": {"name": "digits", "validation": 0.1}},
        "objective": {"name": "vhl", "calibration": 0.1 + 0.2},
        "training": {"lr": 1 / 3},
        "name": "a name/with: signs",
        "profile": "release",
    }
    terms, _ = agreed(dataset([0, 1], channels=3), dataset([2], channels=3, seed=4), **settings)
    back = Terms.read(json.loads(json.dumps(terms.table())))
    assert back == terms
    assert [value.hex() for value in (*back.mean, *back.std)] == [
        value.hex() for value in (*terms.mean, *terms.std)
    ]
    assert back.experiment.training.lr.hex() == (1 / 3).hex()
    assert all(type(getattr(back, key)) is tuple for key in ("sites", "classes", "shape", "mean", "std"))


@pytest.mark.parametrize("key", ["run", "experiment", "sites", "classes", "shape", "mean", "std", "virtual"])
def test_incomplete_terms_are_refused(key):
    table = agreed(dataset([0, 1]))[0].table()
    with pytest.raises(RefusedError):
        Terms.read({k: v for k, v in table.items() if k != key})


@pytest.mark.parametrize("run", ["", "..", "../up", "/root", "a/b", "a\n", None, 5, ["a"]])
def test_a_run_that_is_no_name_is_refused(run):
    with pytest.raises(RefusedError):
        Terms.read({**agreed(dataset([0, 1]))[0].table(), "run": run})


def test_labels_are_those_of_the_common_list():
    mine, other = dataset([0, 1, 1, 2], "dca", test=(1, 2), validation=(0,)), dataset([0], "b")
    terms, _ = agreed(mine, other)
    fitted = terms.fit(mine)
    assert terms.classes == fitted.classes == ("a", "b", "c", "d") and fitted.sites == ("site0", "site1")
    assert fitted.train.labels.tolist() == [3, 2, 2, 0] and fitted.test.labels.tolist() == [2, 0]
    assert fitted.validation is not None and fitted.validation.labels.tolist() == [3]
    assert fitted.train.labels.dtype == np.int64
    assert (fitted.train.images == mine.train.images).all()


def test_grey_becomes_colour_where_that_was_agreed_on():
    grey = dataset([0, 1], validation=(0,))
    fitted = agreed(grey, dataset([2], channels=3))[0].fit(grey)
    assert fitted.validation is not None
    for own, before in zip(
        (fitted.train, fitted.test, fitted.validation), (grey.train, grey.test, grey.validation), strict=True
    ):
        assert before is not None and (own.images == before.images.repeat(3, -1)).all()


def test_data_that_do_not_fit_the_terms_are_an_error(complains):
    terms, _ = agreed(dataset([0, 1]))
    with complains("d", "agreed"):
        terms.fit(dataset([0], "d"))
    with complains("(6, 6, 1)", "(4, 4, 1)"):
        terms.fit(dataset([0], size=6))


@pytest.fixture
def own_file(tmp_path: Path) -> Callable[[str], str]:
    """The name of a class in a file of somebody's own, which says when it runs."""
    file = tmp_path / "own.py"
    file.write_text(
        "from pathlib import Path\n"
        "from vhl.algorithms.fedavg import FedAvg\n"
        "from vhl.data.sources.digits import Digits\n"
        "from vhl.objectives.distances.mmd import MMD\n"
        "from vhl.models.cnn import CNN\n"
        "from vhl.objectives.plain import Plain\n"
        "from vhl.virtual.noise import Noise\n"
        "from vhl.data.partitions.iid import IID\n"
        "Path(__file__).with_name('ran').touch()\n"
        + "".join(
            f"class My{base}({base}):\n    pass\n"
            for base in ("FedAvg", "Digits", "MMD", "CNN", "Plain", "Noise", "IID")
        )
    )
    return lambda base: f"{file}:My{base}"


FOREIGN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "data": ("Digits", lambda part: part),
    "partition": ("IID", lambda part: part),
    "virtual": ("Noise", lambda part: part),
    "model": ("CNN", lambda part: part),
    "objective": ("Plain", lambda part: part),
    "algorithm": ("FedAvg", lambda part: part),
    "virtual.source": ("Digits", lambda part: {"name": "dataset", "source": part}),
    "algorithm.images": ("Noise", lambda part: {"name": "feddf", "images": part}),
    "objective.distance": ("MMD", lambda part: {"name": "vhl", "distance": part}),
    "algorithm.images.source": (
        "Digits",
        lambda part: {"name": "feddf", "images": {"name": "dataset", "source": part}},
    ),
}


@pytest.mark.parametrize("as_table", [True, False], ids=["table", "text"])
@pytest.mark.parametrize("where", FOREIGN)
def test_code_that_a_server_names_does_not_run(tmp_path, own_file, where, as_table):
    base, table = FOREIGN[where]
    name = own_file(base)
    part = table({"name": name} if as_table else name)
    with pytest.raises((RefusedError, VHLError)):
        read_experiment({"experiment": {where.partition(".")[0]: part}})
    assert not (tmp_path / "ran").exists()


def test_the_same_names_make_an_experiment_where_they_are_trusted(tmp_path, own_file):
    """Else the refusals above would say nothing."""
    for where, (base, table) in FOREIGN.items():
        Experiment(**{where.partition(".")[0]: table({"name": own_file(base)})})
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["os:getcwd", "collections:OrderedDict", "nothing", "", ":", "FedAvg", "fedavg "]
)
@pytest.mark.parametrize("as_table", [True, False], ids=["table", "text"])
@pytest.mark.parametrize("key", ["model", "algorithm", "data"])
def test_unknown_names_are_refused(key, name, as_table):
    with pytest.raises((RefusedError, VHLError)):
        read_experiment({"experiment": {key: {"name": name} if as_table else name}})


@pytest.mark.parametrize("table", [None, "fedavg", [], 3])
def test_an_experiment_is_a_table(table):
    with pytest.raises(RefusedError, match="no experiment"):
        read_experiment({"experiment": table})


def test_the_name_of_a_run_is_no_part():
    assert read_experiment({"experiment": {"name": "my.py:Run"}}).name == "my.py:Run"


def test_a_setting_that_does_not_exist_is_an_error(complains):
    with complains("mu"):
        read_experiment({"experiment": {"algorithm": {"name": "fedavg", "mu": 1}}})


@pytest.mark.parametrize("algorithm", available("algorithms"))
@pytest.mark.parametrize("objective", available("objectives"))
def test_every_installed_part_is_read(algorithm, objective):
    experiment = Experiment(algorithm=algorithm, objective=objective)
    assert read_experiment({"experiment": json.loads(json.dumps(experiment.table()))}) == experiment
