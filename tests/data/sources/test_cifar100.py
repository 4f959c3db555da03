from __future__ import annotations

import numpy as np
import pytest

from vhl.data.sources.cifar100 import CIFAR100


@pytest.fixture
def samples(rng):
    """Four training images and one test image with coarse and fine labels."""
    return rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8), [19, 0, 7, 3, 11], [99, 0, 55, 21, 98]


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("form", ["binary", "python"])
def test_every_form_gives_the_images_with_their_fine_labels(
    samples, tmp_path, cifar_record, python2_pickle, pack, form, archived
):
    images, coarse, fine = samples
    files = {}
    for name, part in (("train", slice(4)), ("test", slice(4, 5))):
        rows = zip(images[part], coarse[part], fine[part], strict=True)
        if form == "binary":
            files[f"{name}.bin"] = b"".join(cifar_record(image, *labels) for image, *labels in rows)
        else:
            files[name] = python2_pickle(images[part], fine[part], "fine_labels")
    if archived:
        pack(tmp_path / f"cifar-100-{form}.tar.gz", f"cifar-100-{form}", files)
    else:
        (tmp_path / f"cifar-100-{form}").mkdir()
        for name, raw in files.items():
            (tmp_path / f"cifar-100-{form}" / name).write_bytes(raw)
    dataset = CIFAR100().read(tmp_path, seed=0)
    assert (dataset.train.images == images[:4]).all() and (dataset.test.images == images[4:]).all()
    assert dataset.train.labels.tolist() == fine[:4] and dataset.test.labels.tolist() == fine[4:]


def test_there_are_a_hundred_classes_in_alphabetical_order():
    assert len(set(CIFAR100.class_names)) == 100 and list(CIFAR100.class_names) == sorted(
        CIFAR100.class_names
    )
    assert [CIFAR100.class_names[label] for label in (0, 47, 99)] == ["apple", "maple_tree", "worm"]


def test_defaults_are_those_of_the_paper():
    source = CIFAR100()
    assert (source.padding(32), source.flip, source.cutout) == (4, True, 16)
    mean, std = source.statistics(np.zeros((1, 32, 32, 3), np.uint8))
    assert mean.tolist() == [0.5071, 0.4865, 0.4409] and std.tolist() == [0.2673, 0.2564, 0.2762]


def test_the_record_of_cifar_10_does_not_pass(samples, tmp_path, cifar_record, complains):
    (tmp_path / "cifar-100-binary").mkdir()
    for name in ("train.bin", "test.bin"):
        (tmp_path / "cifar-100-binary" / name).write_bytes(cifar_record(samples[0][0], 1))
    with complains("train.bin is damaged (its 3073 bytes are no multiple of 3074)", "vhl data get cifar100"):
        CIFAR100().read(tmp_path, seed=0)
