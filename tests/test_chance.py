"""Random numbers as a function of a place."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from vhl.chance import Purpose, below, generator, halves, has_triton, normals, torch_seed, words

COUNT = 100_000


def stream(purpose=Purpose.NATURAL, seed=0, round_=0, client=0, step=0, count=8):
    """The first words of many places in a row."""
    return words(seed, purpose, round_, client, step, torch.arange(count))[0].tolist()


# --- the function --------------------------------------------------------------------------------------

ANSWERS = [
    # counter, key, words; from the known-answer tests of the authors' Random123 library
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), ANSWERS)
def test_known_answers(counter, key, expected):
    """The key is seed and purpose; the counter begins with the index and ends with the round."""
    index, step, client, round_ = counter
    found = words(key[0], key[1], round_, client, step, torch.tensor([index]))
    assert [word.item() for word in found] == expected


def test_numbers_and_tensors_give_the_same():
    place, index = (2**32 - 1, Purpose.OBJECTIVE, 5, 2**31, 7), torch.arange(6)
    seed, purpose, *rest = place
    expected = words(seed, purpose, *rest, index)
    tensors = [torch.tensor([number]) for number in (seed, *rest)]
    found = words(tensors[0], purpose, *tensors[1:], index)
    assert all(
        one.equal(other) and one.dtype == torch.int64 for one, other in zip(found, expected, strict=True)
    )


def test_places_are_broadcast():
    """Clients down, samples across."""
    clients, index = torch.tensor([[3], [8], [2]]), torch.arange(5)
    table = words(1, Purpose.VIRTUAL, 4, clients, 6, index)
    assert all(word.shape == (3, 5) for word in table)
    for row, client in enumerate((3, 8, 2)):
        alone = words(1, Purpose.VIRTUAL, 4, client, 6, index)
        assert all(word[row].equal(own) for word, own in zip(table, alone, strict=True))


@pytest.mark.parametrize("other", [{"seed": 1}, {"round_": 1}, {"client": 1}, {"step": 1}])
def test_each_coordinate_makes_another_stream(other):
    assert not set(stream(count=1000)) & set(stream(**other, count=1000))


def test_no_two_purposes_share_a_stream():
    """Not a word of one is found in another; of 9,000 the chance that two agree is 1 in 100."""
    purposes = Purpose.__members__.values()  # which has those that are others by another name
    found = [word for purpose in purposes for word in stream(purpose, count=1000)]
    assert len(set(found)) == 1000 * len(purposes)


def test_no_two_purposes_or_places_share_a_generator():
    places = [(), (1,), (2,), (0, 1), (1, 1), (1, 1, 1), (0, 0, 1)]
    purposes = Purpose.__members__.values()
    firsts = {generator(0, purpose, *place).integers(2**63) for purpose in purposes for place in places}
    assert len(firsts) == len(purposes) * len(places)
    assert generator(1, Purpose.SERVER).integers(2**63) not in firsts


def test_generators_of_neighbouring_places_do_not_run_into_each_other():
    runs = [
        set(generator(0, Purpose.CLIENTS, round_).integers(2**63, size=1000).tolist()) for round_ in range(4)
    ]
    assert not any(one & other for one, other in pairwise(runs))
    again = generator(0, Purpose.CLIENTS, 3).integers(2**63, size=1000)
    assert set(again.tolist()) == runs[3]


def test_seeds_of_networks_are_each_client_s_own():
    places = [(seed, round_, client) for seed in (0, 1) for round_ in (0, 1) for client in (0, 1, 2**32 - 1)]
    seeds = [torch_seed(*place) for place in places]
    assert len(set(seeds)) == len(places) and seeds == [torch_seed(*place) for place in places]
    assert all(0 <= seed < 2**63 for seed in seeds) and max(seeds) > 2**61
    torch.Generator().manual_seed(max(seeds))  # which takes them all


# --- what is made of words -----------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(4))
def test_words_are_uniform(which):
    found = words(3, Purpose.NATURAL, 1, 2, 0, torch.arange(COUNT))[which]
    assert int(found.min()) >= 0 and int(found.max()) < 2**32
    assert kstest(found.numpy() / 2**32, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("limit", [2, 7, 9, 1000])
def test_numbers_below_a_limit_are_uniform(limit):
    word = words(0, Purpose.NATURAL, 0, 0, 0, torch.arange(COUNT))[0]
    for drawn in (below(word, limit), *(below(half, limit, 16) for half in halves(word))):
        counts = np.bincount(drawn.numpy(), minlength=limit)
        assert len(counts) == limit and chisquare(counts).pvalue > 1e-3


def test_limits_of_numbers_below():
    ends = torch.tensor([0, 2**32 - 1])
    assert below(ends, 10).tolist() == [0, 9] and below(ends >> 16, 10, 16).tolist() == [0, 9]
    assert [half.tolist() for half in halves(torch.tensor([0x12345678]))] == [[0x1234], [0x5678]]


def test_both_halves_of_a_word_are_independent():
    high, low = (half.double() for half in halves(words(0, Purpose.VIRTUAL, 0, 0, 0, torch.arange(COUNT))[1]))
    assert abs(torch.corrcoef(torch.stack([high, low]))[0, 1]) < 5 / COUNT**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_are_normal(dtype):
    found = normals(0, 1, 2, 3, (COUNT,), torch.zeros(1, dtype=dtype))
    assert found.dtype == dtype and found.isfinite().all()
    assert kstest(found.numpy(), "norm").pvalue > 1e-3
    moments = [float((found.double() ** power).mean()) for power in (1, 2, 3, 4)]
    # standard errors of the first four moments: √1, √2, √15 and √96 over √n
    errors = [5 * (variance / COUNT) ** 0.5 for variance in (1, 2, 15, 96)]
    assert all(abs(m - e) < error for m, e, error in zip(moments, (0, 1, 0, 3), errors, strict=True))
    for lag in (1, COUNT // 4, COUNT // 2):  # pairs of one radius lie a quarter of all apart
        assert abs(float((found * found.roll(lag)).mean())) < 5 / COUNT**0.5


def test_normal_numbers_by_hand():
    """Box and Muller's pairs of the first two words and of the last two."""
    word = [w.double().numpy() for w in words(5, Purpose.OBJECTIVE, 1, 2, 3, torch.arange(2))]
    expected = []
    for radial, angular in ((word[0], word[1]), (word[2], word[3])):
        radius = np.sqrt(-2 * np.log((radial + 1) / 2**32))
        expected += [
            radius * np.cos(2 * np.pi * angular / 2**32),
            radius * np.sin(2 * np.pi * angular / 2**32),
        ]
    found = normals(5, 1, 2, 3, (7,), torch.zeros(1, dtype=torch.float64))
    np.testing.assert_allclose(found, np.concatenate(expected)[:7], rtol=1e-12)


def test_normal_numbers_of_any_shape_and_type():
    expected = normals(0, 0, 0, 0, (24,), torch.zeros(1))
    assert normals(0, 0, 0, 0, (2, 3, 4), torch.zeros(1)).equal(expected.view(2, 3, 4))
    half = normals(0, 0, 0, 0, (24,), torch.zeros(1, dtype=torch.bfloat16))
    assert half.equal(expected.bfloat16())  # worked out in single precision, rounded at the end
    for place in ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)):
        assert not normals(*place, (24,), torch.zeros(1)).allclose(expected)
    step = torch.tensor([3])  # as a trainer counts them
    assert normals(0, 1, 2, step, (5,), torch.zeros(1)).equal(normals(0, 1, 2, 3, (5,), torch.zeros(1)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("count", [1, 255, 256, 1000])
def test_the_kernel_gives_the_same_words(count: int) -> None:
    index = torch.arange(count) * 7_000_003 % 2**32
    client, round_ = torch.arange(count) % 13, torch.full((count,), 2**31 + 5)
    for seed, step in ((2**32 - 1, 1), (0, torch.arange(count) % 3), (torch.tensor(5), 0)):
        places = (seed, Purpose.VIRTUAL_START, round_, client, step, index)
        there = [p.cuda() if isinstance(p, torch.Tensor) else p for p in places]
        for own, wanted in zip(words(*there), words(*places), strict=True):
            assert torch.equal(own.cpu(), wanted)


@pytest.mark.parametrize(("gpu", "triton"), [(True, True), (True, False), (False, True)])
def test_kernels_need_a_gpu_and_triton(monkeypatch, gpu, triton):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__spec__=object()) if triton else None)
    assert has_triton.__wrapped__() == (gpu and triton)  # not the remembered answer
