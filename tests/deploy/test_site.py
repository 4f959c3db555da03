from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.data.images import ImageSet
from vhl.deploy.orders import Request
from vhl.deploy.own_data import read_data
from vhl.deploy.site import Site, SiteError, receive_virtual, saying
from vhl.errors import VHLError
from vhl.rounds.clients import Order
from vhl.training.task import Outcome


def server_of(site: Site) -> Server:
    """The initial model, and an algorithm's vectors that are not zero."""
    model, algorithm = site.setup.model(start=True), site.setup.experiment.algorithm
    noise = 0.01 * torch.randn(len(model.parameters), generator=torch.Generator().manual_seed(0))
    control = torch.where(model.parameters == 0, 0.0, noise)
    return Server(model.parameters, model.buffers, dict.fromkeys(algorithm.server_state(control), control))


def order(round_: int, state: int | None = None) -> Request:
    return Request(round=round_, rate=0.1, state=state)


def same(one: Outcome, other: Outcome) -> bool:
    def vectors(outcome: Outcome) -> dict[str, Tensor]:
        own = {"parameters": outcome.update.parameters, "buffers": outcome.update.buffers}
        return {**own, **outcome.update.message, **outcome.state, **outcome.totals}

    ours, theirs = vectors(one), vectors(other)
    assert ours.keys() == theirs.keys()
    return all(vector.equal(theirs[name]) for name, vector in ours.items())


@pytest.fixture
def scene(node: Any, terms_of: Any) -> tuple[Site, Server]:
    here = node()
    site = Site(here, terms_of(here))
    return site, server_of(site)


# --- images --------------------------------------------------------------------------------------------


def test_images_are_augmented_as_the_experiment_says(node, terms_of):
    here = node()
    site = Site(here, terms_of(here, data={"crop": 2, "flip": True, "cutout": 3}))
    train, test = site.clients.task.natural, site.setup.test
    assert (train.padding, train.flip, train.cutout) == (2, True, 3)
    assert test is not None and (test.padding, test.flip, test.cutout) == (0, False, 0)


def test_images_are_normalised_as_all_agreed(node, npz, terms_of, tmp_path):
    dark = np.random.default_rng(1).integers(0, 80, (18, 8, 8, 1), np.uint8)
    sites = [node(), node("other", npz(tmp_path / "b.npz", [0, 1] * 9, images=dark))]
    terms = terms_of(*sites)
    own = [read_data(site, terms.experiment).train.images for site in sites]
    whole = np.concatenate(own) / 255
    batch = Site(sites[0], terms).clients.task.natural.batch(torch.arange(3), {})
    expected = (own[0][:3] / 255 - whole.mean()) / whole.std()
    np.testing.assert_allclose(batch.permute(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)


def test_a_site_may_lack_classes(node, pictures, terms_of, tmp_path):
    first = node("first", pictures(tmp_path / "a", {"dog": 5, "cat": 10}))
    second = node("second", pictures(tmp_path / "b", {"eel": 10, "dog": 5}))
    terms = terms_of(first, second)
    assert terms.classes == ("cat", "dog", "eel")
    site = Site(second, terms)
    assert site.setup.classes == 3 and site.setup.data.counts.tolist() == [[0, 4, 8]]
    assert site.setup.test is not None and sorted(site.setup.test.labels.tolist()) == [1, 2, 2]
    outcome, _ = site.train(order(0), server_of(site))
    assert outcome.update.work.samples == 12


def test_a_site_that_holds_out_nothing_trains_and_counts_nothing(node, pictures, terms_of, tmp_path):
    few = node("few", pictures(tmp_path / "a", {"cat": 1, "dog": 2}))
    many = node("many", pictures(tmp_path / "b", {"cat": 10, "dog": 10}))
    site = Site(few, terms_of(few, many, data={"validation": 0.2}))
    assert site.evaluate(server_of(site)) == {}
    outcome, _ = site.train(order(0), server_of(site))
    assert outcome.update.work.samples == 3


# --- training and what is kept -------------------------------------------------------------------------


def test_local_training_is_a_clients(node, terms_of):
    """The site's number in the terms decides its chance; its device and lanes are its own."""
    here, before = node("site"), node("a")
    terms = terms_of(here, before)
    site = Site(here, terms)
    server = server_of(site)
    outcome, lost = site.train(order(4), server)
    zeros = site.setup.experiment.algorithm.client_state(server)
    assert terms.sites == ("a", "site") and outcome.update.client == 1 and not lost
    assert same(outcome, site.clients.train_one(Order(1, 4, 0.1, zeros), server))
    assert not same(outcome, site.clients.train_one(Order(0, 4, 0.1, zeros), server))


def test_state_is_kept_until_the_next_order_confirms_it(scene, node, terms_of):
    site, server = scene
    here = node()
    terms = terms_of(here)

    def train(round_: int, state: int | None) -> Outcome:
        """By a new site each time, as it is a process of its own."""
        outcome, lost = Site(here, terms).train(order(round_, state), server)
        assert not lost
        return outcome

    def expected(round_: int, state: Any) -> Outcome:
        return site.clients.train_one(Order(0, round_, 0.1, state), server)

    first = train(0, None)
    assert set(first.state) == {"control", "engine.momentum"}
    second = train(3, 0)
    assert same(second, expected(3, first.state))
    assert not same(second, expected(3, site.setup.experiment.algorithm.client_state(server)))
    # Round 3 did not count: the server asks again from round 0, then as if it had never asked.
    assert same(train(3, 0), second)
    later = train(5, 0)
    assert same(later, expected(5, first.state))
    assert same(train(6, 5), expected(6, later.state))
    assert same(train(0, None), first)  # an order without a state begins anew


def test_a_lost_state_is_told_and_begun_anew(scene):
    site, server = scene
    fresh, _ = site.train(order(7), server)
    site.train(order(1), server)
    outcome, lost = site.train(order(7, state=5), server)
    assert lost and same(outcome, fresh)


def test_runs_and_sites_keep_their_states_apart(node, terms_of, tmp_path):
    sites = [node(name, store=str(tmp_path / "shared")) for name in ("one", "other")]
    terms = terms_of(*sites)
    one, other = (Site(own, terms) for own in sites)
    another = Site(sites[0], replace(terms, run="another"))
    server = server_of(one)
    for site in (one, other):
        site.train(order(0), server)
    assert another.train(order(3, state=0), server)[1]
    assert not other.train(order(3, state=0), server)[1] and not one.train(order(4, state=0), server)[1]


def test_an_algorithm_without_state_keeps_nothing(node, terms_of):
    here = node()
    site = Site(here, terms_of(here, algorithm="fedavg", training={"keep_momentum": False}))
    site.train(order(0), server_of(site))
    assert not (here.store / "clients").exists()


def test_a_model_that_became_infinite_is_not_kept(scene, node):
    site, server = scene
    site.train(order(0), server)
    with pytest.raises(SiteError, match="infinite") as caught:
        site.train(Request(round=1, rate=1e30, state=0), server)
    assert caught.value.code == "training"
    assert [file.stem for file in (node().store / "clients").rglob("*.*")] == ["round-000000"]


# --- looking at a model --------------------------------------------------------------------------------


def test_predictions_are_counted(node, npz, terms_of, virtual_of, tmp_path):
    """Against PyTorch's own modules and a count by hand; naive's outputs are more than the classes."""
    here = node(data=npz(tmp_path / "a.npz", [0, 1, 2] * 20, classes=np.array(["c", "a", "b"])))
    other = node("other", npz(tmp_path / "b.npz", [0, 1] * 9, classes=np.array(["a", "d"])))
    terms = terms_of(here, other, objective="naive", data={"validation": 0.5})
    site = Site(here, terms)
    counts = site.evaluate(server_of(site))
    outputs, network = site.setup.blueprint.outputs, site.setup.blueprint.start().eval()
    assert outputs > 4 and set(counts) == {"test.0", "test.1", "validation.0", "validation.1"}
    dataset = terms.fit(read_data(here, terms.experiment))
    assert dataset.validation is not None
    for name, images in {"test": dataset.test, "validation": dataset.validation}.items():
        pixels = (torch.tensor(images.images) / 255.0 - terms.mean[0]) / terms.std[0]
        with torch.no_grad():
            logits = network(pixels.permute(0, 3, 1, 2).float())[1]
        for index, width in enumerate((outputs, 4)):
            table = np.zeros((4, width), int)
            for label, row in zip(images.labels, logits[:, :width], strict=True):
                table[label, int(row.argmax())] += 1
            assert counts[f"{name}.{index}"].tolist() == table.tolist()
            assert counts[f"{name}.{index}"].dtype == torch.int64


def test_moments_are_those_of_the_features(node, npz, terms_of, tmp_path):
    """One class the site has not got: its sums are zero, and the server can still add them."""
    here = node()
    terms = terms_of(here, node("other", npz(tmp_path / "b.npz", [0, 1, 2] * 9)))
    site = Site(here, terms)
    seen, train = site.moments(server_of(site)), read_data(here, terms.experiment).train
    pixels = torch.tensor((train.images / 255 - terms.mean[0]) / terms.std[0]).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        network = site.setup.blueprint.start().eval()
        features = network(pixels)[0]["last"].flatten(1).double().numpy()
    for label in range(3):
        own = features[train.labels == label]
        assert seen["counts"][label] == len(own) == (8, 8, 0)[label]
        np.testing.assert_allclose(seen["sums"][label], own.sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(seen["products"][label], own.T @ own, rtol=1e-4, atol=1e-4)


def test_evaluation_needs_no_file_that_the_server_started_from(node, terms_of):
    here = node()
    server = server_of(Site(here, terms_of(here)))
    model = {"name": "cnn", "width": 4, "start": "only/at/the/server.safetensors"}
    assert int(Site(here, terms_of(here, model=model)).evaluate(server)["test.0"].sum()) == 4


# --- the virtual set -----------------------------------------------------------------------------------


@pytest.fixture
def lacks() -> Callable[..., None]:
    """A site that cannot be set up for want of the virtual set."""

    def check(*given: Any) -> None:
        with pytest.raises(SiteError, match="virtual set") as caught:
            Site(*given)
        assert caught.value.code == "virtual"

    return check


def virtual_images(site: Site) -> np.ndarray:
    assert site.setup.virtual is not None
    return site.setup.virtual.images.images


def test_a_site_makes_the_virtual_set(node, terms_of, virtual_of):
    here = node()
    terms = terms_of(here, objective="vhl")
    assert (virtual_images(Site(here, terms)) == virtual_of(terms).images).all()


GENERATORS = {
    "noise": {"name": "noise", "per_class": 4},
    "one that keeps no files": {"name": "dataset", "source": {"name": "digits"}, "per_class": 3},
}


@pytest.mark.parametrize("virtual", GENERATORS.values(), ids=GENERATORS)
def test_a_site_waits_for_the_virtual_set_and_keeps_what_comes(node, terms_of, virtual_of, lacks, virtual):
    here = node(virtual="receive")
    terms = terms_of(here, objective="vhl", virtual=virtual)
    lacks(here, terms)
    receive_virtual(here, terms, virtual_of(terms))
    assert (virtual_images(Site(here, terms)) == virtual_of(terms).images).all()


@pytest.mark.parametrize("virtual", ["make", "receive"])
def test_a_set_that_differs_in_one_bit_is_the_servers_to_give(node, terms_of, virtual_of, lacks, virtual):
    """As where another processor has rounded a pixel the other way."""
    here = node(virtual=virtual)
    made = virtual_of(terms_of(here, objective="vhl"))
    pixels = made.images.copy()
    pixels[3, 2, 1, 0] ^= 1
    theirs = ImageSet(pixels, made.labels)
    terms = replace(terms_of(here, objective="vhl"), virtual=theirs.fingerprint())
    lacks(here, terms)
    for wrong in (made, ImageSet(pixels, made.labels[::-1].copy())):
        with pytest.raises(SiteError, match="not the one of the terms"):
            receive_virtual(here, terms, wrong)
    lacks(here, terms)
    receive_virtual(here, terms, theirs)
    assert (virtual_images(Site(here, terms)) == pixels).all()


def test_terms_without_a_virtual_set_have_none_to_train_on(node, terms_of, lacks):
    here = node()
    lacks(here, replace(terms_of(here, objective="vhl"), virtual=None))


# --- errors --------------------------------------------------------------------------------------------


def test_what_goes_wrong_has_a_code_that_says_where(node, terms_of, tmp_path):
    here = node()
    terms = terms_of(here)
    for code, given in {
        "settings": (node(device="cuda:7"), terms),
        "data": (node(data=f"npz:{tmp_path}/gone.npz"), terms),
        "virtual": (here, replace(terms_of(here, objective="vhl"), virtual="0" * 64)),
        "experiment": (here, terms_of(here, objective={"name": "vhl", "tap": "stage9"})),
    }.items():
        with pytest.raises(SiteError) as caught:
            Site(*given)
        assert caught.value.code == code and str(tmp_path) not in caught.value.sentence
    site, wrong = Site(here, terms), Server(torch.zeros(3), torch.zeros(1))
    for code, ask in {
        "training": lambda: site.train(order(0), wrong),
        "evaluation": lambda: (site.evaluate(wrong), site.moments(wrong)),
    }.items():
        with pytest.raises(SiteError) as caught:
            ask()
        assert caught.value.code == code


@pytest.mark.parametrize("error", [RuntimeError, VHLError])
def test_an_errors_own_words_stay_in_the_log(error, tmp_path, caplog):
    with pytest.raises(SiteError) as caught, saying("data", "A sentence."):
        raise error(f"out of memory at {tmp_path}")
    assert (caught.value.code, str(caught.value)) == ("data", "A sentence.")
    assert str(tmp_path) in caplog.text and ("Traceback" in caplog.text) == (error is RuntimeError)


def test_an_error_that_was_told_already_is_told_once():
    with pytest.raises(SiteError, match="inner"), saying("outer", "outer"), saying("inner", "inner"):
        raise ValueError
