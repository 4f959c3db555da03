"""`vhl bench`: how fast this machine trains, and how much faster than others."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vhl.cli.arguments import Commands, add_command, add_data_dir, add_settings, count, names, seeds

if TYPE_CHECKING:
    from vhl.bench.measure import Speed
    from vhl.bench.work import Round, Work
    from vhl.experiment import Experiment

BASE = {"data": "cifar10", "model": "resnet18", "objective": "plain", "clients_per_round": 5}
"""What is measured where nothing else is said."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "bench", _bench)
    add_settings(parser)
    parser.add_argument("--rounds", type=count, default=10, help="rounds to run; the first is not counted")
    parser.add_argument(
        "--seeds", type=seeds, metavar="0,1", help="run these seeds side by side and count them together"
    )
    parser.add_argument(
        "--against",
        type=names,
        metavar="plain,pfl,flower",
        help="others that do the same work in the same run: a loop by hand, pfl-research, Flower",
    )
    parser.add_argument("--peer-rounds", type=count, default=4, help="rounds of each of them (default: 4)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file (default: one in benchmarks/results/)")
    add_data_dir(parser)


def _bench(arguments: argparse.Namespace) -> None:
    """Measure how fast training is here, alone and against others."""
    from vhl.bench.measure import measure
    from vhl.cli.display import say
    from vhl.cli.running import with_seeds
    from vhl.cli.settings import read
    from vhl.files import write_json
    from vhl.training.threads import choose_threads

    experiment = read(arguments.settings, {**BASE, "rounds": arguments.rounds})
    work = _work(experiment, arguments) if arguments.against else None
    choose_threads()
    experiments = with_seeds(experiment, arguments.seeds)
    speed = measure(experiments, arguments.data_dir)
    found = _describe(experiments, speed)
    _print_speed(found)
    if work is not None:
        found["peers"] = _run_peers(work, arguments)
        _print_peers(found)
    file = arguments.output or Path("benchmarks/results") / f"{_slug(found)}.json"
    write_json(file, found)
    say(f"written to {file}")


def _work(experiment: Experiment, arguments: argparse.Namespace) -> Work:
    """What the peers will do; refused here, before anything runs, where they cannot."""
    from vhl.bench import peers
    from vhl.bench.work import Work

    for name in arguments.against:
        peers.check(name)
    return Work.of(experiment, arguments.data_dir, tf32=False)


def _describe(experiments: list[Experiment], speed: Speed) -> dict[str, Any]:
    from vhl.bench.measure import ceiling
    from vhl.runs.environment import environment
    from vhl.training.precision import Precision, choose_device

    precision = Precision.choose(experiments[0].engine, choose_device(experiments[0].device))
    operations = ceiling(precision)
    return {
        "experiment": experiments[0].table(),
        "side_by_side": len(experiments),
        "precision": precision.name,
        "images": speed.images,
        "seconds": speed.seconds,
        "images_per_second": speed.rate,
        "matrix_ceiling": operations,
        "share_of_ceiling": speed.rate * speed.operations / operations,
        "share_outside_training": speed.idle_seconds / speed.seconds,
        "peak_memory": speed.peak_memory,
        "first_step": speed.first_step,
        "notes": list(speed.notes),
        "environment": environment(),
    }


def _run_peers(work: Work, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    from vhl.bench import peers

    found: dict[str, dict[str, Any]] = {}
    precisions = [False, True] if work.device.type == "cuda" else [False]
    for name in arguments.against:
        for tf32 in precisions:
            rounds = list(peers.run(name, work.with_tf32(tf32), arguments.peer_rounds))
            found[f"{name} {'tf32' if tf32 else 'fp32'}"] = _rates(rounds[1:])
    return found


def _rates(rounds: list[Round]) -> dict[str, Any]:
    """With evaluation, as ours is counted, and without it, to see that the peer runs as it should."""
    images, seconds = sum(r.images for r in rounds), sum(r.seconds for r in rounds)
    training = seconds - sum(r.evaluation for r in rounds)
    return {"images_per_second": images / seconds, "training_images_per_second": images / training}


def _print_speed(found: dict[str, Any]) -> None:
    from rich.table import Table

    from vhl.cli.display import console, short

    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row("images/s, evaluation included", f"[bold]{found['images_per_second']:,.0f}[/]")
    ceiling_ = f"{short(found['matrix_ceiling'], 'FLOP/s')} of a {found['precision']} matrix product"
    table.add_row("share of the ceiling", f"{100 * found['share_of_ceiling']:.1f} % of {ceiling_}")
    table.add_row("time without training", f"{100 * found['share_outside_training']:.1f} %")
    table.add_row("peak memory", short(found["peak_memory"], "B"))
    if found["first_step"] is not None:
        table.add_row("first training step", f"{found['first_step']:.1f} s after the start")
    for note in found["notes"]:
        table.add_row("note", note)
    console.print(table)


def _print_peers(found: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from vhl.cli.display import console

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("", "images/s", "without\nevaluation", "ours is"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, rates in found["peers"].items():
        ratio = found["images_per_second"] / rates["images_per_second"]
        own = (f"{rates[key]:,.0f}" for key in ("images_per_second", "training_images_per_second"))
        table.add_row(name, *own, f"×{ratio:.2f}")
    console.print(table)


def _slug(found: dict[str, Any]) -> str:
    experiment, machine = found["experiment"], found["environment"]
    words = [machine["gpu"] or machine["processor"], experiment["data"]["name"], experiment["model"]["name"]]
    words += [experiment["algorithm"]["name"], experiment["objective"]["name"], found["precision"]]
    if found["side_by_side"] > 1:
        words.append(f"{found['side_by_side']}-at-once")
    return re.sub(r"[^a-z0-9]+", "-", " ".join([*words, machine["date"]]).lower()).strip("-")
