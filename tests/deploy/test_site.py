from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image
from vhl.rounds.problem import Problem

from vhl.algorithms.base import Server
from vhl.data.images import ImageSet
from vhl.deploy.client_app import app
from vhl.deploy.orders import Complaint, Order, Report
from vhl.deploy.site import Settings, Site, SiteError
from vhl.deploy.terms import Terms, agree
from vhl.deploy.wire import flatten, from_text, to_arrays, to_text
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.models.vectors import Layout
from vhl.training.task import Job, Outcome
from vhl.virtual.sets import virtual_set

EXPERIMENT = Experiment.read(
    {
        "data": {"name": "digits", "size": 8, "crop": 0},
        "partition": {"name": "lda", "clients": 3, "alpha": 0.5},
        "virtual": {"name": "noise", "per_class": 4},
        "model": {"name": "cnn", "width": 4},
        "objective": "plain",
        "algorithm": "scaffold",
        "training": {"batch_size": 8, "keep_momentum": True},
        "device": "cpu",
    }
)


def pictures(count: int, channels: int = 1, size: int = 8) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, size, size, channels), np.uint8)


def npz(file: Path, labels: list[int], **arrays: Any) -> str:
    options = {"images": pictures(len(labels)), "labels": np.array(labels), **arrays}
    np.savez(file, **options)
    return f"npz:{file}"


def folder(root: Path, counts: dict[str, int], channels: int = 1, size: int = 8) -> str:
    """A folder a class, with so many images."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number, image in enumerate(pictures(count, channels, size)):
            Image.fromarray(image.squeeze()).save(root / name / f"{number}.png")
    return f"folder:{root}"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Site]:
    """A site with this configuration; by default it has twenty images in two classes."""

    def site(name: str = "here", data: str = "", **config: Any) -> Site:
        words = data or npz(tmp_path / f"{name}.npz", [0, 1] * 10)
        return Site(
            Settings.read({"name": name, "data": words, "store": str(tmp_path / "store" / name), **config})
        )

    return site


def terms_of(*sites: Site, run: str = "run", experiment: Experiment = EXPERIMENT) -> Terms:
    """What a server would make of these sites, its virtual set too."""
    terms, _ = agree(run, experiment, [site.facts(experiment) for site in sites])
    if not experiment.objective.uses_virtual:
        return terms
    made = virtual_set(
        experiment.virtual, len(terms.classes), terms.shape, 0, sites[0].settings.store / "server"
    )
    return replace(terms, virtual=made.fingerprint())


def server_of(problem: Problem, seed: int = 0) -> Server:
    """The initial model, and an algorithm's vectors that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    module = problem.build(problem.shape.outputs)
    layout, tensors = Layout(module), module.state_dict()
    parameters, buffers = layout.pack(tensors)
    noise = {n: 0.01 * torch.randn(t.shape, generator=generator) for n, t in tensors.items()}
    control = layout.pack(noise)[0]
    return Server(
        parameters, buffers, dict.fromkeys(problem.experiment.algorithm.server_state(parameters), control)
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "name"),
        ({"data": "npz:x"}, "name"),
        ({"name": "", "data": "npz:x"}, "name"),
        ({"name": "a/b", "data": "npz:x"}, "a/b"),
        ({"name": "../up", "data": "npz:x"}, "../up"),
        ({"name": "a b", "data": "npz:x"}, "a b"),
        ({"name": "a\n", "data": "npz:x"}, "name"),
        ({"name": "x" * 65, "data": "npz:x"}, "name"),
        ({"name": "a"}, "data"),
        ({"name": "a", "data": ""}, "data"),
        ({"name": "a", "data": "npz:x", "virtual": "maybe"}, "maybe"),
        ({"name": "a", "data": "npz:x", "virtual": True}, "True"),
    ],
    ids=str,
)
def test_wrong_settings_are_errors(complains, config, words):
    with complains(words):
        Settings.read(config)


def test_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("VHL_DATA", str(tmp_path / "cache"))
    plain = Settings.read({"name": "A-1.b_c", "data": "folder:x"})
    assert plain == Settings("A-1.b_c", "folder:x", tmp_path / "cache", "auto", True)
    full = Settings.read(
        {"name": 7, "data": "part:2", "store": "s", "device": "cuda:1", "virtual": "receive"}
    )
    assert full == Settings("7", "part:2", Path("s"), "cuda:1", False)


def test_npz_images_get_the_experiments_size(make, tmp_path):
    site = make(data=npz(tmp_path / "a.npz", [0] * 10 + [1] * 5, images=pictures(15, size=20)))
    facts = site.facts(EXPERIMENT)
    assert facts.shape == [8, 8, 1] and facts.train == [8, 4] and facts.test == [2, 1]


def test_the_experiments_test_share_holds(make, tmp_path):
    data = {"name": "folder", "path": "elsewhere", "test_share": 0.5, "size": 8}
    halves = EXPERIMENT.with_(data=data)
    for words in (
        npz(tmp_path / "a.npz", [0] * 10 + [1] * 6),
        folder(tmp_path / "a", {"0": 10, "1": 6}),
    ):
        facts = make(data=words).facts(halves)
        assert (facts.train, facts.test, facts.shape) == ([5, 3], [5, 3], [8, 8, 1])


def test_the_experiments_validation_share_and_channels_hold(make, tmp_path):
    data = {"name": "digits", "size": 8, "validation": 0.25, "channels": 3}
    facts = make(data=folder(tmp_path / "a", {"a": 10, "b": 20})).facts(EXPERIMENT.with_(data=data))
    assert (facts.train, facts.validation, facts.test) == ([6, 12], [2, 4], [2, 4])
    assert facts.shape == [8, 8, 3]


def test_a_folder_keeps_its_own_size_where_the_experiment_sets_none(make, tmp_path):
    """As with CIFAR-10, whose images have a size of their own."""
    data = {"name": "npz", "path": "elsewhere"}
    facts = make(data=folder(tmp_path / "a", {"a": 10, "b": 10}, size=20)).facts(EXPERIMENT.with_(data=data))
    assert facts.shape == [32, 32, 1]


def test_images_are_augmented_as_the_experiment_says(make):
    data = {"name": "digits", "size": 8, "crop": 2, "flip": True, "cutout": 3}
    site = make()
    streams = site.problem(terms_of(site, experiment=EXPERIMENT.with_(data=data))).natural
    assert (streams.train.padding, streams.train.flip, streams.train.cutout) == (2, True, 3)
    assert (streams.test.padding, streams.test.flip, streams.test.cutout) == (0, False, 0)
    plain = site.problem(terms_of(site)).natural.train
    assert (plain.padding, plain.flip, plain.cutout) == (0, False, 0)


def test_images_are_normalised_as_all_agreed(make, tmp_path):
    site, other = make(), make("other", npz(tmp_path / "b.npz", [0, 1] * 9, images=pictures(18) // 3))
    terms = terms_of(site, other)
    natural = site.problem(terms).natural
    whole = np.concatenate([s.problem(terms).dataset.train.images for s in (site, other)]) / 255
    batch = natural.train.batch(torch.arange(3), {})
    expected = (natural.dataset.train.images[:3] / 255 - whole.mean()) / whole.std()
    np.testing.assert_allclose(batch.permute(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)


def test_a_site_may_lack_classes(make, tmp_path):
    first = make("first", folder(tmp_path / "a", {"dog": 5, "cat": 10}))
    second = make("second", folder(tmp_path / "b", {"eel": 10, "dog": 5}))
    terms = terms_of(first, second)
    assert terms.classes == ("cat", "dog", "eel")
    problem = second.problem(terms)
    assert problem.classes == 3 and problem.natural.counts.tolist() == [[0, 4, 8]]
    assert sorted(problem.dataset.test.labels.tolist()) == [1, 2, 2]
    outcome, _ = second.train(terms, problem, Order(round=0, rate=0.1), server_of(problem))
    assert outcome.update.work.samples == 12


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_a_site_may_have_one_class_only(make, tmp_path, kind):
    """The common case of data that are not alike: a clinic for one illness."""
    words = folder(tmp_path / "a", {"eel": 10})
    if kind == "npz":
        words = npz(tmp_path / "a.npz", [0] * 10, classes=np.array(["eel"]))
    assert make(data=words).facts(EXPERIMENT).train == [8]


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_a_site_may_have_too_few_images_to_hold_any_out(make, tmp_path, kind):
    """Its images are too dear to be refused; others test."""
    words = folder(tmp_path / "a", {"cat": 1, "dog": 2})
    if kind == "npz":
        words = npz(tmp_path / "a.npz", [0, 1, 1], classes=np.array(["cat", "dog"]))
    few, many = make("few", words), make("many", folder(tmp_path / "b", {"cat": 10, "dog": 10}))
    experiment = EXPERIMENT.with_(data={"validation": 0.2})
    facts = few.facts(experiment)
    assert (facts.train, facts.test, facts.validation) == ([1, 2], [0, 0], [0, 0])
    terms = terms_of(few, many, experiment=experiment)
    problem = few.problem(terms)
    assert few.evaluate(problem, server_of(problem)) == {}
    outcome, _ = few.train(terms, problem, Order(round=0, rate=0.1), server_of(problem))
    assert outcome.update.work.samples == 3


def test_parts_are_the_experiments_own_clients(make, tmp_path, monkeypatch):
    monkeypatch.setenv("VHL_DATA", str(tmp_path))
    dataset = EXPERIMENT.data.load(tmp_path, 0)
    parts = EXPERIMENT.partition.assign(dataset, 0)
    sites = [make(f"s{i}", f"part:{i}") for i in range(3)]
    terms = terms_of(*sites)
    tests = 0
    for site, part in zip(sites, parts, strict=True):
        own = site.problem(terms).dataset
        assert (own.train.images == dataset.train.images[part]).all()
        assert (own.train.labels == dataset.train.labels[part]).all()
        tests += len(own.test)
    assert tests == len(dataset.test)
    with pytest.raises(SiteError) as caught:
        make("s3", "part:3").facts(EXPERIMENT)
    assert "3 parts" in str(caught.value.__cause__)


def test_parts_have_validation_images_where_the_experiment_does(make, tmp_path, monkeypatch):
    monkeypatch.setenv("VHL_DATA", str(tmp_path))
    held = EXPERIMENT.with_(data={"name": "digits", "validation": 0.1})
    facts = [make(f"s{i}", f"part:{i}").facts(held) for i in range(3)]
    validation = held.data.load(tmp_path, 0).validation
    assert validation is not None
    assert sum(sum(own.validation) for own in facts) == len(validation)


def test_local_training_is_a_clients(make):
    """The site's number in the terms decides its chance; its device and lanes are its own."""
    site, before = make("site"), make("a")
    terms = terms_of(site, before)
    problem = site.problem(terms)
    server = server_of(problem)
    outcome, lost = site.train(terms, problem, Order(round=4, rate=0.1), server)
    zeros = problem.experiment.algorithm.client_state(server)
    job = Job(terms.sites.index("site"), 4, np.arange(16), 0.1, zeros)
    (expected,) = problem.lanes().train(problem.task(), [job], server)
    assert job.client == 1 and not lost
    assert same(outcome, expected)


def same(one: Outcome, other: Outcome) -> bool:
    pairs = [(one.update.parameters, other.update.parameters), (one.update.buffers, other.update.buffers)]
    for ours, theirs in (
        (one.update.message, other.update.message),
        (one.state, other.state),
        (one.totals, other.totals),
    ):
        assert ours.keys() == theirs.keys()
        pairs += [(ours[name], theirs[name]) for name in ours]
    return all(torch.equal(a, b) for a, b in pairs)


def kept(site: Site, run: str = "run") -> list[int]:
    place = site.settings.store / "clients" / run / site.settings.name
    return sorted(int(file.stem.split("-")[1]) for file in place.iterdir())


def test_state_is_kept_until_the_next_order_confirms_it(make):
    site = make()
    terms = terms_of(site)
    problem = site.problem(terms)
    server = server_of(problem)
    task, lanes = problem.task(), problem.lanes()

    def expected(round_: int, state: Any) -> Outcome:
        (outcome,) = lanes.train(task, [Job(0, round_, problem.parts[0], 0.1, state)], server)
        return outcome

    def train(round_: int, state: int | None) -> tuple[Outcome, bool]:
        # a new site each time: a process of its own
        return Site(site.settings).train(terms, problem, Order(round=round_, rate=0.1, state=state), server)

    first, lost = train(0, None)
    assert kept(site) == [0] and not lost
    assert set(first.state) == {"control", "engine.momentum"}
    second, lost = train(3, 0)
    assert kept(site) == [0, 3] and not lost
    assert same(second, expected(3, first.state))
    assert not same(second, expected(3, problem.experiment.algorithm.client_state(server)))
    # Round 3 did not count: the server asks again from round 0, then as if it had never asked.
    again, lost = train(3, 0)
    assert same(again, second) and not lost and kept(site) == [0, 3]
    later, lost = train(5, 0)
    assert same(later, expected(5, first.state)) and not lost and kept(site) == [0, 5]
    third, lost = train(6, 5)
    assert same(third, expected(6, later.state)) and not lost and kept(site) == [5, 6]


def test_a_lost_state_is_told_and_begun_anew(make):
    site = make()
    terms = terms_of(site)
    problem = site.problem(terms)
    server = server_of(problem)
    fresh, _ = site.train(terms, problem, Order(round=7, rate=0.1), server)
    site.train(terms, problem, Order(round=1, rate=0.1), server)
    outcome, lost = site.train(terms, problem, Order(round=7, rate=0.1, state=5), server)
    assert lost and same(outcome, fresh)


def test_an_order_without_a_state_begins_anew(make):
    site = make()
    terms = terms_of(site)
    problem = site.problem(terms)
    server = server_of(problem)
    first, _ = site.train(terms, problem, Order(round=0, rate=0.1), server)
    site.train(terms, problem, Order(round=1, rate=0.1, state=0), server)
    again, lost = site.train(terms, problem, Order(round=0, rate=0.1), server)
    assert same(again, first) and not lost and kept(site) == [0]


def test_runs_and_sites_keep_their_states_apart(make, tmp_path):
    store = {"store": str(tmp_path / "shared")}
    one, other = make("one", **store), make("other", **store)
    terms = terms_of(one, other)
    problems = {site: site.problem(terms) for site in (one, other)}
    server = server_of(problems[one])
    for site, problem in problems.items():
        site.train(terms, problem, Order(round=0, rate=0.1), server)
    another = replace(terms, run="another")
    one.train(another, problems[one], Order(round=2, rate=0.1), server)
    assert kept(one) == kept(other) == [0] and kept(one, "another") == [2]
    _, lost = one.train(another, problems[one], Order(round=3, rate=0.1, state=0), server)
    assert lost
    _, lost = other.train(terms, problems[other], Order(round=3, rate=0.1, state=0), server)
    assert not lost and kept(one) == [0] and kept(other) == [0, 3]


def test_an_algorithm_without_state_keeps_nothing(make):
    plain = EXPERIMENT.with_(algorithm="fedavg", training={"keep_momentum": False})
    site = make()
    terms = terms_of(site, experiment=plain)
    problem = site.problem(terms)
    site.train(terms, problem, Order(round=0, rate=0.1), server_of(problem))
    assert not (site.settings.store / "clients").exists()


def test_a_model_that_became_infinite_is_not_kept(make):
    site = make()
    terms = terms_of(site)
    problem = site.problem(terms)
    server = server_of(problem)
    site.train(terms, problem, Order(round=0, rate=0.1), server)
    with pytest.raises(SiteError, match="infinite") as caught:
        site.train(terms, problem, Order(round=1, rate=1e30, state=0), server)
    assert caught.value.code == "training" and kept(site) == [0]


def test_predictions_are_counted(make, tmp_path):
    """Against PyTorch's own modules and a count by hand; naive's outputs are more than the classes."""
    experiment = EXPERIMENT.with_(objective="naive", data={"name": "digits", "size": 8, "validation": 0.5})
    site = make(data=npz(tmp_path / "a.npz", [0, 1, 2] * 20, classes=np.array(["c", "a", "b"])))
    other = make("other", npz(tmp_path / "b.npz", [0, 1] * 9, classes=np.array(["a", "d"])))
    terms = terms_of(site, other, experiment=experiment)
    site.receive_virtual(terms, virtual_set(*key(terms), tmp_path))
    problem = site.problem(terms)
    counts = site.evaluate(problem, server_of(problem))
    network = problem.build(problem.shape.outputs).eval()
    assert problem.shape.outputs > 4 and set(counts) == {"test.0", "test.1", "validation.0", "validation.1"}
    dataset = problem.dataset
    assert dataset.validation is not None
    for name, images in {"test": dataset.test, "validation": dataset.validation}.items():
        pixels = (torch.tensor(images.images) / 255.0 - terms.mean[0]) / terms.std[0]
        with torch.no_grad():
            logits = network(pixels.permute(0, 3, 1, 2).float())[1]
        for index, width in enumerate((problem.shape.outputs, 4)):
            table = np.zeros((4, width), int)
            for label, row in zip(images.labels, logits[:, :width], strict=True):
                table[label, int(row.argmax())] += 1
            assert counts[f"{name}.{index}"].tolist() == table.tolist()
            assert counts[f"{name}.{index}"].dtype == torch.int64


def test_moments_are_those_of_the_features(make, tmp_path):
    """One class the site has not got: its sums are zero, and the server can still add them."""
    site, other = make(), make("other", npz(tmp_path / "b.npz", [0, 1, 2] * 9))
    problem = site.problem(terms_of(site, other))
    seen = site.moments(problem, server_of(problem))
    network, dataset = problem.build(3).eval(), problem.dataset
    mean, std = (float(value[0]) for value in problem.natural.statistics)
    pixels = torch.tensor((dataset.train.images / 255 - mean) / std).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        features = network(pixels)[0]["last"].flatten(1).double().numpy()
    for label in range(3):
        own = features[dataset.train.labels == label]
        assert seen["counts"][label] == len(own) == (8, 8, 0)[label]
        np.testing.assert_allclose(seen["sums"][label], own.sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(seen["products"][label], own.T @ own, rtol=1e-4, atol=1e-4)


def test_evaluation_needs_no_file_that_the_server_started_from(make):
    site = make()
    model = {"name": "cnn", "width": 4, "start": "only/at/the/server.safetensors"}
    problem = site.problem(terms_of(site, experiment=EXPERIMENT.with_(model=model)))
    counts = site.evaluate(problem, server_of(problem))
    assert int(counts["test.0"].sum()) == 4


def test_a_site_that_holds_out_nothing_counts_nothing(make, tmp_path):
    site = make(data="part:0")
    experiment = EXPERIMENT.with_(partition={"name": "iid", "clients": 400})
    site_without = make("without", "part:399")  # digits has 359 test images
    terms = terms_of(site, site_without, experiment=experiment)
    problem = site_without.problem(terms)
    assert site_without.evaluate(problem, server_of(problem)) == {}


def key(terms: Terms) -> tuple[Any, int, tuple[int, int, int], int]:
    return terms.experiment.virtual, len(terms.classes), terms.shape, terms.experiment.seeds.data


VIRTUAL = EXPERIMENT.with_(objective="vhl")


def test_a_site_makes_the_virtual_set(make):
    site = make()
    problem = site.problem(terms_of(site, experiment=VIRTUAL))
    assert problem.virtual is not None and len(problem.virtual.images) == 8


def test_a_site_waits_for_the_virtual_set_and_keeps_what_comes(make, tmp_path):
    site = make(virtual="receive")
    terms = terms_of(site, experiment=VIRTUAL)
    with pytest.raises(SiteError, match="virtual set") as caught:
        site.problem(terms)
    assert caught.value.code == "virtual"
    made = virtual_set(*key(terms), tmp_path)
    site.receive_virtual(terms, made)
    problem = Site(site.settings).problem(terms)
    assert problem.virtual is not None
    assert (problem.virtual.images.images == made.images).all()


@pytest.mark.parametrize("virtual", ["make", "receive"])
def test_a_set_that_differs_in_one_bit_is_the_servers_to_give(make, tmp_path, virtual):
    """As where another processor has rounded a pixel the other way."""
    site = make(virtual=virtual)
    made = virtual_set(*key(terms_of(site, experiment=VIRTUAL)), tmp_path)
    pixels = made.images.copy()
    pixels[3, 2, 1, 0] ^= 1
    theirs = ImageSet(pixels, made.labels)
    terms = replace(terms_of(site, experiment=VIRTUAL), virtual=theirs.fingerprint())
    with pytest.raises(SiteError) as caught:
        site.problem(terms)
    assert caught.value.code == "virtual"
    with pytest.raises(SiteError, match="not the one of the terms"):
        site.receive_virtual(terms, made)
    with pytest.raises(SiteError, match="not the one of the terms"):
        site.receive_virtual(terms, ImageSet(pixels, made.labels[::-1].copy()))
    site.receive_virtual(terms, theirs)
    problem = site.problem(terms)
    assert problem.virtual is not None and (problem.virtual.images.images == pixels).all()


def test_any_virtual_set_can_be_received(make, tmp_path):
    """Also one whose generator keeps no files, as it reads others' images."""
    source = {"name": "dataset", "source": {"name": "digits"}, "per_class": 3}
    site = make(virtual="receive")
    terms = terms_of(site, experiment=VIRTUAL.with_(virtual=source))
    site.receive_virtual(terms, virtual_set(*key(terms), tmp_path))
    problem = site.problem(terms)
    assert problem.virtual is not None and problem.virtual.images.fingerprint() == terms.virtual


def test_terms_without_a_virtual_set_have_none_to_train_on(make):
    site = make()
    with pytest.raises(SiteError) as caught:
        site.problem(replace(terms_of(site, experiment=VIRTUAL), virtual=None))
    assert caught.value.code == "virtual"


def ask(site_config: dict[str, Any], kind: str, records: dict[str, Any]) -> RecordDict:
    """What the app answers."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    context = Context(run_id=1, node_id=5, node_config=site_config, state=RecordDict(), run_config={})
    return app(Message(RecordDict(records), 5, kind), context).content


def config_of(site: Site) -> dict[str, Any]:
    own = site.settings
    return {"name": own.name, "data": own.data, "store": str(own.store), "device": own.device}


def everything(terms: Terms, server: Server | None = None, **order: Any) -> dict[str, Any]:
    records = {"terms": to_text(terms.table()), "order": to_text({"round": 0, "rate": 0.1, **order})}
    return records if server is None else {**records, "server": to_arrays(flatten(server))}


@pytest.fixture
def scene(make, tmp_path) -> tuple[Site, Terms, Server]:
    site = make()
    terms = terms_of(site)
    return site, terms, server_of(site.problem(terms))


def complaint(found: RecordDict) -> Complaint:
    assert set(found) == {"complaint"}
    return Complaint.read(from_text(found, "complaint"))


def tells_nothing(found: RecordDict, tmp_path: Path) -> bool:
    """Whether nothing that leaves the site has a path in it."""
    sent = recorddict_to_proto(found).SerializeToString()
    words = [str(tmp_path), tmp_path.name, ".npz", ".safetensors", "Traceback", "Error("]
    return len(sent) > 10 and not any(word.encode() in sent for word in words)


def test_good_answers_tell_no_path(scene, tmp_path):
    site, terms, server = scene
    config = config_of(site)
    hello = ask(config, "query.hello", {"hello": to_text({"experiment": EXPERIMENT.table()})})
    assert set(hello) == {"facts"} and tells_nothing(hello, tmp_path)
    trained = ask(config, "train", everything(terms, server))
    assert set(trained) == {"report", "update"} and tells_nothing(trained, tmp_path)
    report = Report.read(from_text(trained, "report"))
    assert (report.run, report.round, report.samples) == ("run", 0, 16)
    assert report.keeps_state and not report.lost_state
    model = {"parameters": server.parameters, "buffers": server.buffers}
    judged = ask(config, "evaluate", {**everything(terms), "server": to_arrays(model)})
    assert set(judged) == {"report", "seen"} and tells_nothing(judged, tmp_path)
    seen = ask(config, "query.moments", {**everything(terms), "server": to_arrays(model)})
    assert set(seen) == {"report", "seen"} and tells_nothing(seen, tmp_path)
    lost = ask(config, "train", everything(terms, server, state=9))
    assert Report.read(from_text(lost, "report")).lost_state


def _damage_data(site: Site) -> None:
    Path(site.settings.data.removeprefix("npz:")).write_bytes(b"nothing")


def _other_classes(site: Site) -> None:
    npz(
        Path(site.settings.data.removeprefix("npz:")),
        [0, 1] * 10,
        classes=np.array(["secret", "illness"]),
    )


def _block_store(site: Site) -> None:
    """A file where the folder of states should be."""
    site.settings.store.mkdir(parents=True, exist_ok=True)
    (site.settings.store / "clients").write_text("")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [(_damage_data, "data"), (_other_classes, "data"), (_block_store, "state")],
    ids=["damaged data", "other classes", "no place for states"],
)
def test_what_goes_wrong_at_the_site_is_told_without_a_path(scene, tmp_path, caplog, spoil, code):
    site, terms, server = scene
    spoil(site)
    found = ask(config_of(site), "train", everything(terms, server))
    assert complaint(found).code == code and tells_nothing(found, tmp_path)
    assert b"secret" not in recorddict_to_proto(found).SerializeToString()
    assert caplog.records  # whoever runs the site is told


@pytest.mark.parametrize("kind", ["query.hello", "train", "evaluate", "query.virtual"])
@pytest.mark.parametrize(
    "config",
    [{}, {"name": "a/b", "data": "npz:x"}, {"name": "here"}, {"name": "here", "virtual": "x"}],
    ids=str,
)
def test_wrong_settings_are_told_without_a_path(scene, tmp_path, kind, config):
    _, terms, server = scene
    found = ask({"store": str(tmp_path), **config}, kind, everything(terms, server))
    assert complaint(found).code == "settings" and tells_nothing(found, tmp_path)


def test_a_device_that_is_not_there_is_told_without_a_path(scene, tmp_path):
    site, terms, server = scene
    config = {**config_of(site), "device": "cuda:7"}
    found = ask(config, "train", everything(terms, server))
    assert complaint(found).code in ("data", "settings", "experiment") and tells_nothing(found, tmp_path)


def test_data_that_are_missing_are_told_without_a_path(scene, tmp_path):
    site, _, _ = scene
    for words in (
        f"npz:{tmp_path}/gone.npz",
        f"folder:{tmp_path}/gone",
        f"{tmp_path}/own.py:Source",
        "part:9",
        "part:x",
        "nonsense",
    ):
        config = {**config_of(site), "data": words}
        found = ask(config, "query.hello", {"hello": to_text({"experiment": EXPERIMENT.table()})})
        assert complaint(found).code == "data" and tells_nothing(found, tmp_path)


def test_a_virtual_set_that_lacks_is_told_without_a_path(make, tmp_path):
    site = make()
    terms = replace(terms_of(site, experiment=VIRTUAL), virtual="0" * 64)
    found = ask(config_of(site), "train", everything(terms))
    assert complaint(found).code == "virtual" and tells_nothing(found, tmp_path)
    made = virtual_set(*key(terms), tmp_path)
    arrays = {"images": torch.from_numpy(made.images), "labels": torch.from_numpy(made.labels)}
    count = to_text({"images": len(made)})
    gift = {"terms": to_text(terms.table()), "virtual": count, "images": to_arrays(arrays)}
    found = ask(config_of(site), "query.virtual", gift)
    assert complaint(found).code == "virtual" and tells_nothing(found, tmp_path)
    gift["terms"] = to_text(replace(terms, virtual=made.fingerprint()).table())
    assert set(ask(config_of(site), "query.virtual", gift)) == {"report"}


def test_failed_training_and_evaluation_are_told_without_a_path(scene, tmp_path, monkeypatch):
    site, terms, server = scene

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"out of memory at {tmp_path}")

    found = ask(config_of(site), "train", everything(terms, server, rate=1e30))
    assert complaint(found).code == "training" and tells_nothing(found, tmp_path)
    monkeypatch.setattr("vhl.deploy.site.evaluate", fail)
    model = {"parameters": server.parameters, "buffers": server.buffers}
    found = ask(config_of(site), "evaluate", {**everything(terms), "server": to_arrays(model)})
    assert complaint(found).code == "evaluation" and tells_nothing(found, tmp_path)
    monkeypatch.setattr("vhl.training.lanes.Lanes.train", fail)
    found = ask(config_of(site), "train", everything(terms, server))
    assert complaint(found).code == "training" and tells_nothing(found, tmp_path)
    monkeypatch.setattr("vhl.deploy.site._SiteProblem.__init__", fail)
    found = ask(config_of(site), "train", everything(terms, server))
    assert complaint(found).code == "experiment" and tells_nothing(found, tmp_path)
    monkeypatch.setattr("vhl.deploy.client_app.Terms.read", fail)
    found = ask(config_of(site), "train", everything(terms, server))
    assert complaint(found).code == "internal" and tells_nothing(found, tmp_path)


def test_a_damaged_state_is_a_lost_one_or_told_as_such(scene, tmp_path):
    site, terms, server = scene
    ask(config_of(site), "train", everything(terms, server))
    (file,) = (site.settings.store / "clients" / "run" / "here").iterdir()
    file.write_bytes(b"nothing")
    found = ask(config_of(site), "train", everything(terms, server, round=1, state=0))
    assert tells_nothing(found, tmp_path)
    if "complaint" in found:
        assert complaint(found).code == "state"
    else:
        assert Report.read(from_text(found, "report")).lost_state


def _swap(key: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda records: {**records, key: value}


@pytest.mark.parametrize(
    "change",
    [
        lambda records: {},
        lambda records: {"terms": records["terms"]},
        _swap("terms", to_text({})),
        _swap("order", to_text({"round": -1, "rate": 0.1})),
        _swap("order", to_text({"round": 0, "rate": float("nan")})),
        _swap("order", to_text({"round": 0, "rate": 0.1, "more": 1})),
        _swap("server", to_arrays({})),
        _swap("server", to_arrays({"parameters": torch.zeros(1), "buffers": torch.zeros(1)})),
    ],
    ids=[
        "nothing",
        "terms alone",
        "empty terms",
        "a round before the first",
        "no rate",
        "more",
        "none",
        "short",
    ],
)
def test_a_message_that_is_no_order_is_refused(scene, tmp_path, change):
    site, terms, server = scene
    found = ask(config_of(site), "train", change(everything(terms, server)))
    assert complaint(found).code == "message" and tells_nothing(found, tmp_path)
    assert not (site.settings.store / "clients").exists()


def test_code_that_a_message_names_does_not_run(scene, tmp_path):
    site, terms, server = scene
    file = tmp_path / "own.py"
    file.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    for part in (f"{file}:Own", {"name": f"{file}:Own"}):
        table = json.loads(json.dumps(terms.table()))
        table["experiment"]["algorithm"] = part
        records = {**everything(terms, server), "terms": to_text(table)}
        found = ask(config_of(site), "train", records)
        assert complaint(found).code == "message"
    assert not (tmp_path / "ran").exists()


def test_a_site_that_is_not_in_the_terms_does_nothing(scene, make, tmp_path):
    _, terms, server = scene
    stranger = make("stranger")
    found = ask(config_of(stranger), "train", everything(terms, server))
    complaint(found)
    assert tells_nothing(found, tmp_path) and not (stranger.settings.store / "clients").exists()


def test_an_error_of_the_package_is_a_sentence_of_the_log_alone(scene, monkeypatch, tmp_path):
    site, terms, server = scene

    def fail(*_: Any) -> Any:
        raise VHLError(f"{tmp_path} is not readable.")

    monkeypatch.setattr("vhl.deploy.client_app.server_forms", fail)
    found = ask(config_of(site), "train", everything(terms, server))
    assert tells_nothing(found, tmp_path)
