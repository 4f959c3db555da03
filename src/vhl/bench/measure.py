"""How fast our engine is: images a second, and what becomes of the rest of the time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.local import Shared, local
from vhl.rounds.simulation import Simulation
from vhl.runs.record import Record
from vhl.training.lane import Mark, Span
from vhl.training.precision import Precision


@dataclass(frozen=True)
class Speed:
    """All rounds but the first of each experiment, evaluation included."""

    images: int
    """Trained on, natural and virtual; fillers are not counted."""
    seconds: float
    """Wall time."""
    idle_seconds: float
    """Of that, when no client was being trained."""
    peak_memory: int
    """Bytes of the GPU's memory, or of the process where there is none."""
    first_step: float | None
    """Seconds from the start of the process to the first training step; unknown on some systems."""
    operations: int
    """Floating-point operations of training on one image."""
    notes: tuple[str, ...]
    """What made it slower."""

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


def measure(experiments: Sequence[Experiment], data_dir: Path | None = None) -> Speed:
    """Run experiments side by side; the clock runs once each has done its first round."""
    if min(experiment.rounds for experiment in experiments) < 2:
        raise VHLError("A benchmark leaves out the first round, which starts up; set rounds to 2 at least.")
    shared, notes = Shared(), list[str]()
    federations = [local(e, data_dir, shared=shared, on_note=notes.append) for e in experiments]
    runs = [
        Simulation(e, federation=own, on_note=notes.append)
        for e, own in zip(experiments, federations, strict=True)
    ]
    setup, lanes = federations[0].setup, federations[0].lanes
    _reset_peak(setup.precision.device)
    lanes.spans = []
    _run(runs, 1)
    first_step = _age_at(lanes.spans)
    lanes.spans.clear()
    started = time.perf_counter()
    records = _run(runs, None)
    seconds = time.perf_counter() - started
    return Speed(
        images=sum(record.samples for record in records),
        seconds=seconds,
        idle_seconds=max(0.0, seconds - busy_seconds(lanes.spans)),
        peak_memory=_peak(setup.precision.device),
        first_step=first_step,
        operations=6 * setup.blueprint.known.multiply_adds,
        notes=tuple(notes),
    )


def _run(simulations: Sequence[Simulation], until: int | None) -> list[Record]:
    """Run each simulation to a round, or to its end, all on the same lanes."""
    records = []
    left = {s: (s.experiment.rounds if until is None else until) - s.state.round for s in simulations}
    while any(left.values()):
        for simulation in [s for s, rounds in left.items() if rounds]:
            record = simulation.poll()
            if record is not None:
                records.append(record)
                left[simulation] -= 1
    return records


def busy_seconds(spans: Sequence[Span]) -> float:
    """How long at least one of the spans lasted.

    >>> busy_seconds([Span(0.0, 2.0), Span(1.0, 3.0), Span(5.0, 6.0)])
    4.0
    """
    marks = [(span.began, span.ended) for span in spans if span.began is not None and span.ended is not None]
    total, end = 0.0, float("-inf")
    for began, ended in sorted((_since(marks[0][0], one), _since(marks[0][0], two)) for one, two in marks):
        total += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return total


def _since(origin: Mark, mark: Mark) -> float:
    """Seconds from one moment to another."""
    if isinstance(origin, torch.cuda.Event) and isinstance(mark, torch.cuda.Event):
        mark.synchronize()
        return float(origin.elapsed_time(mark)) / 1000
    assert isinstance(origin, float) and isinstance(mark, float)
    return mark - origin


def ceiling(precision: Precision) -> float:
    """Operations a second that a large matrix product reaches here, in this precision: the best of ten."""
    device, size = precision.device, 8192 if precision.device.type == "cuda" else 1024
    one, other = (torch.randn(size, size, device=device).to(precision.compute_dtype) for _ in range(2))
    best = float("inf")
    with precision.active():
        for _ in range(10):
            _wait(device)
            started = time.perf_counter()
            one @ other
            _wait(device)
            best = min(best, time.perf_counter() - started)
    return float(2 * size**3 / best)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    import resource  # where there is no Linux there may be no such module

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _age_at(spans: Sequence[Span]) -> float | None:
    """How old this process was when the first job began; Linux alone says when a process began."""
    began_training = [_since(span.began, _now(span.began)) for span in spans if span.began is not None]
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    return age - max(began_training)


def _now(like: Mark) -> Mark:
    if not isinstance(like, torch.cuda.Event):
        return time.perf_counter()
    now = torch.cuda.Event(enable_timing=True)
    now.record()
    return now
