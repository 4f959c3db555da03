from __future__ import annotations

import time

import pytest
import torch

from vhl.bench.measure import busy_seconds, ceiling, measure
from vhl.experiment import Experiment
from vhl.rounds.local import LocalClients
from vhl.training.lane import Span
from vhl.training.precision import Precision
from vhl.training.trainer import Trainer


def experiment(small_digits, **settings):
    defaults = {
        "data": small_digits(),
        "partition": {"name": "iid", "clients": 4},
        "virtual": {"name": "noise", "per_class": 5},
        "model": {"name": "cnn", "width": 4},
        "objective": "plain",
        "training": {"batch_size": 8},
        "clients_per_round": 2,
        "rounds": 3,
        "device": "cpu",
    }
    return Experiment(**{**defaults, **settings})


def test_images_of_all_rounds_but_the_first(small_digits, tmp_path):
    """Two of four clients with 20 images each; VHL adds 8 virtual images to each of three batches."""
    plain = experiment(small_digits)
    assert measure([plain], tmp_path).images == 2 * 40
    settings = {"objective": "vhl", "training": {"batch_size": 8, "epochs": 2}}
    seeds = [experiment(small_digits, seeds={"batches": seed}, **settings) for seed in (0, 1)]
    both = measure(seeds, tmp_path)
    assert both.images == 2 * 2 * 2 * (40 + 2 * 3 * 8)
    assert both.rate == both.images / both.seconds
    assert both.notes == ()


def test_time_in_which_nothing_is_trained(small_digits, tmp_path, monkeypatch):
    """Evaluation is made to take longer than all the rest."""
    evaluate = LocalClients.evaluate

    def slow(self, server):
        time.sleep(0.2)
        return evaluate(self, server)

    monkeypatch.setattr(LocalClients, "evaluate", slow)
    speed = measure([experiment(small_digits)], tmp_path)
    assert speed.seconds > 0.4
    assert 0.4 < speed.idle_seconds < speed.seconds


def test_training_time_is_not_idle(small_digits, tmp_path, monkeypatch):
    step = Trainer.next

    def slow(self):
        time.sleep(0.03)
        step(self)

    monkeypatch.setattr(Trainer, "next", slow)
    speed = measure([experiment(small_digits)], tmp_path)
    assert speed.seconds > 2 * 2 * 3 * 0.03
    assert speed.idle_seconds < speed.seconds / 2


def test_other_numbers_are_plausible(small_digits, tmp_path):
    speed = measure([experiment(small_digits)], tmp_path)
    assert 10e6 < speed.peak_memory < 100e9
    assert speed.first_step is None or 0 < speed.first_step < 24 * 3600
    # 3×3 convolutions 1→4 on 8×8, 4→8 on 4×4, 8→16 on 2×2, and the head 16→4; forward and twice back
    assert speed.operations == 6 * (9 * 4 * 64 + 9 * 4 * 8 * 16 + 9 * 8 * 16 * 4 + 16 * 4)


def test_one_round_is_too_few(small_digits, tmp_path, complains):
    with complains("rounds", "2"):
        measure([experiment(small_digits, rounds=1)], tmp_path)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0),
        ([(3.0, 5.0)], 2),
        ([(0.0, 9.0), (1.0, 2.0), (8.0, 10.0)], 10),  # one inside another
        ([(4.0, 5.0), (0.0, 1.0)], 2),  # in any order
    ],
)
def test_busy_seconds(spans, seconds):
    unfinished = Span(7.0, None)
    assert busy_seconds([*(Span(*span) for span in spans), unfinished]) == seconds


def test_the_ceiling_is_that_of_a_matrix_product(monkeypatch):
    ticks = iter([0.0, 8.0] * 3 + [0.0, 2.0] + [0.0, 8.0] * 6)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert ceiling(Precision(torch.device("cpu"), "fp32")) == 2 * 1024**3 / 2.0
