"""What each step uses, against loops over clients, epochs and samples in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from vhl.chance import Purpose
from vhl.data.images import ImageSet, ImageStream
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vfa import VFA
from vhl.objectives.vhl import VHL
from vhl.training.mosaics import MosaicStream
from vhl.training.schedule import Round, natural_schedules, steps_per_epoch, virtual_schedules
from vhl.training.streams import Stream
from vhl.training.task import Job

CPU, STATISTICS = torch.device("cpu"), (np.zeros(1), np.ones(1))


def a_stream(count, tiles=1, of_one_class=False, classes=3, **settings):
    images = ImageSet(np.zeros((count, 8, 8, 1), np.uint8), np.arange(count) % classes)
    options = {"crop": 1, "flip": True, "cutout": 3, **settings}
    if tiles == 1:
        return Stream(images, ImageStream(**options), STATISTICS, CPU)
    options |= {"crop": options["crop"] * tiles, "cutout": options["cutout"] * tiles}
    return MosaicStream(
        images, ImageStream(**options), STATISTICS, CPU, tiles=tiles, of_one_class=of_one_class
    )


def rounds_of(*sizes, round_=3):
    """Clients 10, 11, ... that hold the samples one after the other, from the last down."""
    last = 10 + sum(sizes)
    parts = (last - torch.arange(sum(sizes))).split(sizes)
    return [Round(10 + number, round_, part) for number, part in enumerate(parts)]


# --- an independent implementation ---------------------------------------------------------------------


def philox(seed, purpose, round_, client, step, index):
    """Salmon et al. (2011), in whole numbers of any length."""
    counter, key, mask = [index, step, client, round_], [seed, int(purpose)], 2**32 - 1
    for _ in range(10):
        one, other = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (other >> 32) ^ counter[1] ^ key[0],
            other & mask,
            (one >> 32) ^ counter[3] ^ key[1],
            one & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def choices_of(words, prefix, padding=1, cutout=3, side=8):
    """How one sample is augmented, from its four words."""
    _, crop, coin, hole = words
    found = {"row": crop >> 16, "column": crop & 0xFFFF} if padding else {}
    found = {name: half * (2 * padding + 1) >> 16 for name, half in found.items()}
    found |= {"flip": coin >= 2**31}
    if cutout:
        found |= {"hole_row": (hole >> 16) * side >> 16, "hole_column": (hole & 0xFFFF) * side >> 16}
    return {f"{prefix}.{name}": value for name, value in found.items()}


def natural_rows(seed, one, batch, epochs):
    """Step by step, sample by sample: what is in a natural batch."""
    size, steps = len(one.samples), []
    for epoch in range(epochs):
        drawn = [philox(seed, Purpose.NATURAL, one.round, one.client, epoch, place) for place in range(size)]
        order = sorted(range(size), key=lambda place: drawn[place][0])
        for start in range(0, size, batch):
            places = (order[start:] + order * batch)[:batch]
            weights = [1.0] * min(batch, size - start) + [0.0] * max(0, start + batch - size)
            steps.append(
                [
                    {"index": int(one.samples[p]), "weights": w, **choices_of(drawn[p], "natural")}
                    for p, w in zip(places, weights, strict=True)
                ]
            )
    return steps


def shuffled(seed, round_, stream, of_one_class):
    """The virtual set in a round's order."""
    drawn = [philox(seed, Purpose.VIRTUAL_ORDER, round_, 0, 0, place) for place in range(len(stream))]
    if not of_one_class:
        return sorted(range(len(stream)), key=lambda place: drawn[place][0])
    groups, size = [], stream.tiles**2
    for label in range(3):
        own = sorted(
            (n for n in range(len(stream)) if stream.labels[n] == label), key=lambda place: drawn[place][0]
        )
        groups += [own[start : start + size] for start in range(0, len(own) - size + 1, size)]
    return [number for group in sorted(groups, key=lambda group: drawn[group[0]][1]) for number in group]


def virtual_rows(seed, one, stream, rows, steps, of_one_class, **augmentation):
    order, group = shuffled(seed, one.round, stream, of_one_class), stream.tiles**2
    start = philox(seed, Purpose.VIRTUAL_START, one.round, one.client, 0, 0)[0] * (len(order) // group) >> 32
    samples = [
        {
            "virtual": order[(start * group + number) % len(order)],
            **choices_of(
                philox(seed, Purpose.VIRTUAL, one.round, one.client, 0, number), "virtual", **augmentation
            ),
        }
        for number in range(rows * steps)
    ]
    return [samples[row * rows : (row + 1) * rows] for row in range(steps)]


def assert_equal(found, expected):
    """A schedule and rows of samples."""
    assert set(found) == set(expected[0][0])
    for name, values in found.items():
        assert values.tolist() == [[sample[name] for sample in row] for row in expected], name


SIZES = [(5, 1, 12, 8), (1,), (1, 1), (7, 20, 3)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("batch", "epochs"), [(4, 1), (4, 3), (1, 2), (16, 2)])
def test_natural_schedules_are_those_of_loops(sizes, batch, epochs):
    clients = rounds_of(*sizes)
    found = natural_schedules(9, clients, a_stream(60), batch, epochs)
    assert len(found) == len(clients)
    for schedule, one in zip(found, clients, strict=True):
        assert_equal(schedule, natural_rows(9, one, batch, epochs))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("count", "rows", "tiles", "of_one_class"),
    [
        (10, 3, 1, False),
        (3, 8, 1, False),
        (50, 8, 2, False),
        (17, 4, 2, False),
        (50, 8, 2, True),
        (18, 4, 2, True),
    ],
)
def test_virtual_schedules_are_those_of_loops(sizes, count, rows, tiles, of_one_class):
    stream, clients = a_stream(count, tiles, of_one_class), rounds_of(*sizes)
    order = stream.shuffled(9, Purpose.VIRTUAL_ORDER, 3)
    found = virtual_schedules(9, clients, stream, order, rows, [size + 1 for size in sizes])
    for schedule, one, size in zip(found, clients, sizes, strict=True):
        assert_equal(schedule, virtual_rows(9, one, stream, rows, size + 1, of_one_class))


# --- properties ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_epoch_is_each_sample_once_and_fillers_from_its_start(sizes, batch, epochs, seed):
    clients = rounds_of(*sizes)
    for found, one in zip(natural_schedules(seed, clients, a_stream(3), batch, epochs), clients, strict=True):
        count = len(one.samples)
        steps = -(-count // batch)
        assert steps_per_epoch(count, batch) == steps
        assert found["index"].shape == found["weights"].shape == (epochs * steps, batch)
        for epoch in range(epochs):
            rows = slice(epoch * steps, (epoch + 1) * steps)
            index, weights = found["index"][rows].flatten(), found["weights"][rows].flatten()
            assert sorted(index[:count].tolist()) == sorted(one.samples.tolist())
            assert weights.tolist() == [1] * count + [0] * (steps * batch - count)
            assert index[count:].tolist() == [int(index[n % count]) for n in range(steps * batch - count)]


def test_epochs_are_shuffled_anew():
    (found,) = natural_schedules(0, rounds_of(40), a_stream(60), 40, 2)
    first, second = found["index"].tolist()
    assert first != second and first != sorted(first) and first != sorted(first)[::-1]


@pytest.fixture
def schedules(make_task):
    """What a task says of jobs."""

    def make(jobs, objective=None, seed=0, batch=4, epochs=2, virtual=None):
        training = {"batch_size": batch, "epochs": epochs}
        sizes = tuple(len(job.samples) for job in jobs)
        objective = objective or VHL(virtual_batch=6)
        options = {"virtual": virtual or a_stream(20, crop=2), "objective": objective, "seed": seed}
        task = make_task(lambda: None, a_stream(100), training=training, sizes=sizes, **options)
        return task.schedules([Job(job.client, job.round, job.samples, 0.1, {}) for job in jobs])

    return make


def lists(schedule):
    return {name: values.tolist() for name, values in schedule.items()}


def test_clients_have_the_same_schedules_together_and_alone(schedules):
    """In any order, whoever else takes part."""
    jobs = rounds_of(5, 1, 12, 8)
    together = [lists(own) for own in schedules(jobs)]
    assert together == [lists(own) for job in jobs for own in schedules([job])]
    assert together[::-1] == [lists(own) for own in schedules(jobs[::-1])]


def test_seed_round_and_client_decide_everything(schedules):
    (job,) = rounds_of(30)
    (reference,) = schedules([job])
    assert lists(*schedules([job])) == lists(reference)
    for other in (
        schedules([job], seed=1),
        schedules([Round(job.client, 4, job.samples)]),
        schedules([Round(11, job.round, job.samples)]),
    ):
        assert all(not other[0][name].equal(reference[name]) for name in reference if name != "weights")


@pytest.mark.parametrize(
    "objective", [Plain(), VFA(), VHL(virtual_batch=7), Naive(mosaic=2, virtual_batch=8)]
)
def test_natural_choices_are_the_same_whatever_the_objective(schedules, objective):
    """Paired runs see the same natural batches, crops and flips."""
    virtual = a_stream(20, 2, crop=1) if objective.virtual_images(4) and objective.mosaic == 2 else None
    (alone,), (paired,) = (
        schedules(rounds_of(30), **more)
        for more in ({"objective": Plain()}, {"objective": objective, "virtual": virtual})
    )
    assert set(alone) == {"index", "weights"} | {
        f"natural.{name}" for name in ("row", "column", "flip", "hole_row", "hole_column")
    }
    assert ("virtual" in paired) == (objective.virtual_images(4) is not None)
    assert all(alone[name].equal(paired[name]) for name in alone)


def test_a_task_s_virtual_schedules_are_those_of_loops(schedules):
    """With short batches there are as many virtual images as ever."""
    virtual, jobs = a_stream(20, crop=2), rounds_of(5, 1, 8)
    for found, job in zip(schedules(jobs, seed=9, virtual=virtual), jobs, strict=True):
        rows = {name: values for name, values in found.items() if name.startswith("virtual")}
        steps = 2 * -(-len(job.samples) // 4)
        assert_equal(rows, virtual_rows(9, job, virtual, 6, steps, False, padding=2))


def test_a_stream_without_augmentation_has_nothing_to_choose():
    (found,) = natural_schedules(0, rounds_of(20), a_stream(60, crop=0, flip=False, cutout=0), 4, 1)
    assert set(found) == {"index", "weights"}


def test_virtual_images_are_passes_over_the_round_s_order():
    """Five steps of 8 images are four passes over 10, from a start of the client's own."""
    stream = a_stream(10)
    order = stream.shuffled(0, Purpose.VIRTUAL_ORDER, 3)
    assert sorted(order.tolist()) == list(range(10)) and order.tolist() != list(range(10))
    assert not order.equal(stream.shuffled(0, Purpose.VIRTUAL_ORDER, 4))
    found = virtual_schedules(0, rounds_of(*[20] * 6), stream, order, 8, [5] * 6)
    starts = {int(own["virtual"][0, 0]) for own in found}
    assert len(starts) > 1
    for own in found:
        passes = own["virtual"].view(4, 10)
        assert sorted(passes[0].tolist()) == list(range(10)) and passes.eq(passes[0]).all()


@pytest.mark.parametrize(("tiles", "of_one_class"), [(1, False), (2, False), (2, True)])
def test_virtual_classes_are_balanced_on_average(tiles, of_one_class):
    """One step of four images each: over many clients and rounds every image comes as often as any other."""
    stream, counts = a_stream(48, tiles, of_one_class), torch.zeros(48, dtype=torch.int64)
    for round_ in range(20):
        order = stream.shuffled(0, Purpose.VIRTUAL_ORDER, round_)
        clients = rounds_of(*[1] * 200, round_=round_)
        for own in virtual_schedules(0, clients, stream, order, 4, [1] * 200):
            counts += own["virtual"].flatten().bincount(minlength=48)
    assert counts.sum() == 20 * 200 * 4
    # four images of a step come together, so that the sum of squares is at most four times as large
    assert chisquare(counts.numpy()).statistic / 4 < 100
    assert chisquare(torch.zeros(3).index_add(0, stream.labels, counts.float()).numpy()).statistic / 4 < 20


def test_mosaics_of_one_class_stay_together_over_passes():
    """Classes of 17, 17 and 16 images make four mosaics each; what is left over differs by round."""
    stream = a_stream(50, 2, of_one_class=True)
    left_out = set()
    for round_ in range(8):
        order = stream.shuffled(0, Purpose.VIRTUAL_ORDER, round_)
        assert len(order) == len(order.unique()) == 48
        left_out |= set(range(50)) - set(order.tolist())
        for own in virtual_schedules(0, rounds_of(1, 1, 1, round_=round_), stream, order, 20, [4] * 3):
            labels = stream.labels[own["virtual"].view(-1, 4)]
            assert labels.eq(labels[:, :1]).all() and len(labels[:5, 0].unique()) > 1
    assert len(left_out) > 4
