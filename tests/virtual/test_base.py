"""What all generators have in common."""

from __future__ import annotations

import numpy as np
import pytest

from vhl.virtual.base import Workplace
from vhl.virtual.decoder import Decoder
from vhl.virtual.noise import Noise
from vhl.virtual.stylegan import StyleGAN

GENERATORS = [Noise(), StyleGAN(width=8), Decoder(width=4)]
every = pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.name)


@every
@pytest.mark.parametrize(
    "classes, per_class, shape", [(3, 2, (28, 28, 1)), (1, 3, (20, 12, 3)), (2, 1, (1, 1, 1))]
)
def test_any_class_count_size_and_channels(generator, classes, per_class, shape):
    images = generator.generate(classes, per_class, shape, 0)
    assert images.images.shape == (classes * per_class, *shape)
    assert images.images.dtype == np.uint8
    assert images.labels.dtype == np.int64
    assert images.labels.tolist() == [label for label in range(classes) for _ in range(per_class)]


@every
def test_the_seed_decides_all_bytes(generator):
    first, again, other = (generator.generate(2, 3, (16, 16, 3), seed).images for seed in (5, 5, 6))
    assert first.tobytes() == again.tobytes()
    assert (first != other).mean() > 0.3  # noise clamps about half of its pixels to 0


@every
def test_samples_and_classes_differ(generator):
    images = generator.generate(3, 4, (16, 16, 3), 0).images
    assert len({image.tobytes() for image in images}) == 12


@every
def test_a_class_of_its_own_does_not_depend_on_how_many_others_follow(generator):
    """Weights and class means come from one stream, samples from another: class 0 comes first in both."""
    options = {"standardise": False} if isinstance(generator, StyleGAN) else {}
    generator = generator.model_copy(update=options)
    few, many = (generator.generate(classes, 2, (8, 8, 3), 0).images[:2] for classes in (1, 4))
    assert np.abs(few.astype(int) - many.astype(int)).max() <= 1


@every
def test_progress_counts_up_to_all_images(generator):
    calls: list[tuple[int, int]] = []
    generator.generate(2, 300, (8, 8, 1), 0, Workplace(progress=lambda *done: calls.append(done)))
    assert [made for made, _ in calls] == sorted({made for made, _ in calls})
    assert {total for _, total in calls} == {600}
    assert calls[-1] == (600, 600)


@pytest.mark.parametrize(
    "classes, per_class, expected",
    [(10, None, 5_000), (100, None, 500), (7, None, 5_000), (60_000, None, 1), (10, 3, 3)],
)
def test_count_per_class_is_bounded_in_all(classes, per_class, expected):
    assert Noise(per_class=per_class).count_per_class(classes) == expected


@every
def test_held_out_images_are_others_of_the_same_classes(generator):
    shape = (8, 8, 1)
    train, held_out = generator.generate(3, 60, shape, 4), generator.held_out(3, 60, shape, 4)
    assert held_out.labels.tolist() == train.labels.tolist()
    flat, fresh = (part.images.reshape(180, -1).astype(float) for part in (train, held_out))
    assert not any((flat == row).all(1).any() for row in fresh)
    means, others = (np.stack([x[train.labels == c].mean(0) for c in range(3)]) for x in (flat, fresh))
    distances = np.linalg.norm(means[:, None] - others[None], axis=2)
    assert (distances.argmin(1) == np.arange(3)).all()  # each class's mean is nearest to its own again
    assert np.diag(distances).max() < 0.5 * distances[~np.eye(3, dtype=bool)].min()
    assert (generator.held_out(3, 60, shape, 4).images == held_out.images).all()
