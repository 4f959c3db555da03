"""VHL in a loop of somebody's own, against the loss written out pair by pair and the set as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vhl.chance import Purpose, generator, normals
from vhl.dropin.loss import VirtualHomogeneity
from vhl.models.cnn import CNN
from vhl.objectives.vhl import VHL
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.virtual.tensors import virtual_images

CLASSES, NATURAL, PER_CLASS = 3, 7, 4
AS_THEY_ARE = {"name": "noise", "per_class": PER_CLASS, "crop": 0, "flip": False}


class Net(nn.Module):
    """A user's own: logits alone, and what it was given last."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Linear(2 * 6 * 4, 5)
        self.fc = nn.Linear(5, outputs)

    def features(self, images: Tensor) -> Tensor:
        self.images = images.detach()
        return self.body(images.flatten(1)).tanh()

    def forward(self, images: Tensor) -> Any:
        return self.fc(self.features(images))


class Pair(Net):
    """The same with features beside the logits."""

    def forward(self, images: Tensor) -> Any:
        self.given = self.features(images)
        self.logits = self.fc(self.given)
        return self.given, self.logits


@pytest.fixture(autouse=True)
def _data(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VHL_DATA", str(data_dir))


def make(**options: Any) -> VirtualHomogeneity:
    return VirtualHomogeneity(
        **{"classes": CLASSES, "size": (6, 4), "channels": 2, "virtual": AS_THEY_ARE, **options}
    )


def natural(dtype: torch.dtype = torch.float64, rows: int = NATURAL) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(2)
    images = torch.from_numpy(rng.standard_normal((rows, 2, 6, 4))).to(dtype)
    return images, torch.from_numpy(rng.integers(0, CLASSES, rows))


def find(images: Tensor) -> Tensor:
    """Which of the virtual set each image is; its class is that by ``PER_CLASS``."""
    known, _ = virtual_images("noise", classes=CLASSES, per_class=PER_CLASS, shape=(6, 4, 2))
    near = (images[:, None].float() - known[None]).abs().amax((2, 3, 4)) < 1e-5
    assert (near.sum(1) == 1).all()
    return near.int().argmax(1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([z.logsumexp(0) - z[y] for z, y in zip(logits, targets, strict=True)]).mean()


def contrast(features: Tensor, labels: Tensor) -> Tensor:
    """Equation 2 of Khosla et al., anchor by anchor."""
    unit = [row / row.norm() for row in features]
    total = torch.zeros((), dtype=features.dtype)
    for i, anchor in enumerate(unit):
        others = [a for a in range(len(unit)) if a != i]
        positive = [p for p in others if labels[p] == labels[i]]
        scale = torch.stack([anchor @ unit[a] / 0.07 for a in others]).logsumexp(0)
        for p in positive:
            total = total - (anchor @ unit[p] / 0.07 - scale) / len(positive)
    return total / len(unit)


def expected(model: Pair, labels: Tensor, calibration: float = 1.0) -> dict[str, Tensor]:
    rows = len(labels)
    virtual_labels = find(model.images[rows:]) // PER_CLASS
    features = torch.cat([model.given[:rows], model.given[rows:].detach()])
    return {
        "natural": cross_entropy(model.logits[:rows], labels),
        "virtual": cross_entropy(model.logits[rows:], CLASSES + virtual_labels),
        "calibration": calibration * contrast(features, torch.cat([labels, virtual_labels])),
    }


@pytest.mark.parametrize(
    ("objective", "virtual_rows", "terms"),
    [
        ("vhl", NATURAL, ["natural", "virtual", "calibration"]),
        ({"calibration": 0.3, "virtual_batch": 5}, 5, ["natural", "virtual", "calibration"]),
        ({"virtual_batch": 30}, 30, ["natural", "virtual", "calibration"]),
        ("naive", NATURAL, ["natural", "virtual"]),
        ("plain", 0, ["natural"]),
    ],
)
def test_loss_and_gradient_are_those_of_the_formula(
    objective: Any, virtual_rows: int, terms: list[str]
) -> None:
    vhl = make(objective=objective)
    images, labels = natural()
    model = Pair(vhl.outputs).double()
    vhl.begin(1, 0)
    found = {name: term.item() for name, term in vhl.terms(model, images, labels).items()}
    vhl.begin(1, 0)
    loss = vhl.loss(model, images, labels)
    gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)

    assert torch.equal(model.images[:NATURAL], images) and len(model.images) == NATURAL + virtual_rows
    weight = objective.get("calibration", 1.0) if isinstance(objective, dict) else 1.0
    by_hand = expected(model, labels, weight) if virtual_rows else {}
    by_hand["natural"] = cross_entropy(model.logits[:NATURAL], labels)
    assert found == {term: pytest.approx(by_hand[term].item(), rel=1e-12) for term in terms}
    total = sum(by_hand[term] for term in terms)
    assert loss.item() == pytest.approx(total.item(), rel=1e-12)
    for ours, other in zip(gradient, torch.autograd.grad(total, list(model.parameters())), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-12)


def test_a_named_last_layer_gives_what_a_pair_gives() -> None:
    images, labels = natural()
    losses, gradients = [], []
    for kind, head in ((Pair, None), (Net, "fc")):
        vhl = make(head=head)
        vhl.begin(1, 0)
        model = kind(vhl.outputs).double()
        for _ in range(2):  # what the first call hooks in must not be there in the second
            loss = vhl.loss(model, images, labels)
        losses.append(loss.item())
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        assert not model.fc._forward_pre_hooks
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_every_virtual_image_comes_once_before_any_comes_again() -> None:
    vhl = make(objective={"virtual_batch": 5})
    images, labels = natural()
    model, seen = Pair(vhl.outputs).double(), []
    for _ in range(12):
        vhl.loss(model, images, labels)
        seen += find(model.images[NATURAL:]).tolist()
    size = CLASSES * PER_CLASS
    passes = [seen[start : start + size] for start in range(0, 60, size)]
    assert all(sorted(part) == list(range(size)) for part in passes)
    assert len(set(map(tuple, passes))) == 5


def test_virtual_images_are_flipped_and_cropped_as_the_generator_says() -> None:
    images, labels = natural(rows=64)
    flipping = make(virtual={**AS_THEY_ARE, "flip": True})
    model = Pair(flipping.outputs).double()
    flipping.loss(model, images, labels)
    known, _ = virtual_images("noise", classes=CLASSES, per_class=PER_CLASS, shape=(6, 4, 2))
    both = torch.cat([known, known.flip(3)])
    near = (model.images[64:, None].float() - both[None]).abs().amax((2, 3, 4)) < 1e-5
    assert (near.sum(1) == 1).all()
    assert 10 < near[:, len(known) :].sum() < 54

    cropping = make(virtual={**AS_THEY_ARE, "crop": 6})
    cropping.loss(model, images, labels)
    black = (model.images[64:] == -2.0).all(1).all(2).any(1)  # a row of padding, (0 − 0.5) / 0.25
    assert black.sum() > 32


def test_two_sites_have_the_same_set_and_chance_of_their_own() -> None:
    images, labels = natural(rows=CLASSES * PER_CLASS)

    def given(begin: tuple[int, int] | None, **options: Any) -> Tensor:
        vhl = make(**options)
        if begin:
            vhl.begin(*begin)
        model = Pair(vhl.outputs).double()
        vhl.loss(model, images, labels)
        return model.images[len(images) :]

    ours, theirs = given(None), given(None)
    assert not torch.equal(ours, theirs)
    assert torch.equal(ours[find(ours).argsort()], theirs[find(theirs).argsort()])
    assert torch.equal(given((3, 1)), given((3, 1)))
    assert not torch.equal(given((3, 1)), given((3, 2)))
    assert not torch.equal(given((3, 1)), given((4, 1)))
    assert given((3, 1), seed=1).mean() != pytest.approx(ours.mean().item(), abs=1e-3)


def test_begin_starts_anew_in_the_middle_of_a_pass() -> None:
    vhl = make(objective={"virtual_batch": 5})
    images, labels = natural()
    model = Pair(vhl.outputs).double()
    vhl.begin(2, 0)
    first = vhl.loss(model, images, labels).item()
    assert vhl.loss(model, images, labels).item() != first
    vhl.begin(2, 0)
    assert vhl.loss(model, images, labels).item() == first


@pytest.mark.parametrize(
    ("objective", "virtual", "outputs"),
    [
        ("vhl", AS_THEY_ARE, 6),
        ("vhl", {**AS_THEY_ARE, "classes": 5}, 8),
        ({"shared_labels": True}, AS_THEY_ARE, 3),
        ("plain", AS_THEY_ARE, 3),
        ("vfa", AS_THEY_ARE, 3),
    ],
)
def test_how_wide_the_last_layer_must_be(objective: Any, virtual: dict[str, Any], outputs: int) -> None:
    vhl = make(objective=objective, virtual=virtual)
    assert vhl.outputs == outputs
    images, labels = natural(torch.float32)
    assert vhl.loss(Pair(outputs), images, labels).isfinite()


def test_drawn_features_are_those_of_the_seed_the_round_and_the_client() -> None:
    vhl = make(objective="vfa", seed=4)
    vhl.begin(2, 1)
    images, labels = natural(torch.float32)
    model = Pair(vhl.outputs)
    term = vhl.terms(model, images, labels)["calibration"]
    means = torch.from_numpy(generator(4, Purpose.CONSTANTS).random((CLASSES, 1, 5), np.float32))
    per_class = NATURAL // CLASSES + 1
    drawn_labels = torch.arange(CLASSES).repeat_interleave(per_class)
    for step in range(3):
        noise = normals(4, 2, 1, step, (CLASSES, per_class, 5), means)
        drawn = (means + 0.05 * noise).flatten(0, 1)
        by_hand = contrast(torch.cat([model.given, drawn]), torch.cat([labels, drawn_labels]))
        assert term.item() == pytest.approx(by_hand.item(), rel=1e-5)
        term = vhl.terms(model, images, labels)["calibration"]


def test_a_model_of_ours_gives_features_by_tap() -> None:
    vhl = make(objective={"tap": "stage2"})
    network = CNN(width=2).build(vhl.outputs, 2, (6, 4)).double()
    images, labels = natural()
    caught: dict[str, Any] = {}
    network.register_forward_hook(lambda _, given, output: caught.update(images=given[0], output=output))
    term = vhl.terms(network, images, labels)["calibration"]
    stage = caught["output"][0]["stage2"].flatten(1)
    both = torch.cat([labels, find(caught["images"][NATURAL:]) // PER_CLASS])
    assert term.item() == pytest.approx(contrast(stage, both).item(), rel=1e-12)


def test_under_autocast_the_model_is_in_half_precision_and_the_loss_is_not() -> None:
    vhl = make()
    images, labels = natural(torch.float32)
    model = Pair(vhl.outputs)
    with torch.autocast("cpu", torch.bfloat16):
        terms = vhl.terms(model, images, labels)
    assert model.given.dtype == model.logits.dtype == torch.bfloat16
    model.given, model.logits = model.given.double(), model.logits.double()
    for name, by_hand in expected(model, labels).items():
        assert terms[name].dtype == torch.float32
        assert terms[name].item() == pytest.approx(by_hand.item(), rel=1e-5), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_a_cpu_gives() -> None:
    losses = []
    for device in ("cpu", "cuda"):
        vhl = make()
        vhl.begin(1, 0)
        images, labels = (x.to(device) for x in natural())
        losses.append(vhl.loss(Pair(vhl.outputs).double().to(device), images, labels).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


class Heavier(VHL):
    """An objective of one's own that weighs images."""

    def virtual_images(self, natural: int) -> VirtualBatch:
        return VirtualBatch(natural, share=0.7)


@pytest.mark.parametrize(
    "objective",
    [{"name": "vhl", "mosaic": 2}, {"name": "naive", "batch_norm_share": 0.5}, "vhl-light", Heavier()],
    ids=str,
)
def test_what_needs_networks_of_an_experiment(complains: Any, objective: Any) -> None:
    with complains(
        "mosaics and shares of batch-norm statistics are for networks of experiments", "objective = vhl"
    ):
        make(objective=objective)


def test_wrong_images_and_labels(complains: Any) -> None:
    vhl, (images, labels) = make(), natural(torch.float32)
    model = Pair(vhl.outputs)
    with complains("(7, 2, 4, 6)", "(N, 2, 6, 4)", "size and channels"):
        vhl.loss(model, images.transpose(2, 3), labels)
    with complains("(7, 1, 6, 4)", "(N, 2, 6, 4)"):
        vhl.loss(model, images[:, :1], labels)
    with complains("from 0 to 3", "classes = 3", "0 to 2"):
        vhl.loss(model, images, torch.tensor([0, 1, 2, 3, 0, 0, 0]))
    with complains("from -1 to 2"):
        vhl.loss(model, images, torch.tensor([0, 1, 2, -1, 0, 0, 0]))
    with complains("one whole number an image", "(7, 3)"):
        vhl.loss(model, images, nn.functional.one_hot(labels, 3))
    with complains("one whole number an image", "torch.float32"):
        vhl.loss(model, images, labels.float())
    with complains("batch is empty"):
        vhl.loss(model, images[:0], labels[:0])


def test_labels_of_any_whole_type() -> None:
    images, labels = natural(torch.float32)
    losses = []
    for dtype in (torch.int64, torch.int32, torch.uint8):
        vhl = make()
        vhl.begin(0, 0)
        losses.append(vhl.loss(Pair(vhl.outputs), images, labels.to(dtype)).item())
    assert losses[0] == losses[1] == losses[2]


class Twice(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images) + super().forward(images)


class Never(Net):
    def forward(self, images: Tensor) -> Any:
        return nn.functional.linear(self.features(images), self.fc.weight)


class Mixed(Pair):
    def forward(self, images: Tensor) -> Any:
        features, logits = super().forward(images)
        return features[:-1], logits


@pytest.mark.parametrize(
    ("model", "head", "texts"),
    [
        (Pair(3), None, ["(14, 3)", "(14, 6)", "VirtualHomogeneity.outputs"]),
        (Net(3), "fc", ["(14, 3)", "(14, 6)"]),
        (Net(6), None, ["(features, logits)", "head="]),
        (Net(6), "head", ["no layer 'head'", "named_modules"]),
        (Twice(6), "fc", ["head = 'fc'", "2 times"]),
        (Never(6), "fc", ["head = 'fc'", "0 times"]),
        (Pair(6), "fc", ["head = 'fc'", "a tuple"]),
        (Mixed(6), None, ["'last'", "(13, 5)"]),
    ],
)
def test_wrong_models(complains: Any, model: nn.Module, head: str | None, texts: list[str]) -> None:
    with complains(*texts):
        make(head=head).loss(model, *natural(torch.float32))


def test_wrong_options(complains: Any) -> None:
    with complains("objective = vftl", "before the first round"):
        make(objective="vftl")
    with complains("objective", "did you mean 'naive'?"):
        make(objective="naiv")
    with complains("virtual", "'per_class'"):
        make(virtual={"per_clas": 3})
    for wrong in ({"classes": 1}, {"size": (0, 4)}, {"channels": 0}):
        with complains("two classes and a pixel at least"):
            VirtualHomogeneity(**{"classes": 3, "size": 4, "channels": 1, **wrong})
    assert VirtualHomogeneity(classes=3, size=4, channels=1).shape == (4, 4, 1)
    vhl = make(objective={"tap": "deep"})
    with complains("objective.tap = 'stage4'", "last (14, 5)"):
        vhl.loss(Pair(vhl.outputs), *natural(torch.float32))
