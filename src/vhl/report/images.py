"""What images look like, and where models put them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from vhl.report import features
from vhl.report.figure import Figure, Picture, Points
from vhl.report.shown import Method, Shown
from vhl.virtual.inspection import picture


def pictures(runs: Sequence[Shown]) -> Iterator[Figure]:
    """Virtual images; where runs have the same ones, once."""
    seen: dict[bytes, Shown] = {}
    for run in runs:
        file = run.folder.path / "virtual.png"
        if file.is_file():
            seen.setdefault(file.read_bytes(), run)
    for number, (image, run) in enumerate(seen.items(), 1):
        title = f"Virtual images ({run.settings['virtual.name']})"
        yield _picture(f"virtual-{number}", title, image)


def natural(problems: Sequence[Shown], directory: Path) -> Iterator[Figure]:
    """Training images of each problem, from the data in a directory."""
    for number, run in enumerate(problems, 1):
        dataset = run.experiment.data.load(directory, run.experiment.seeds.data)
        drawn = io.BytesIO()
        picture(dataset.train).save(drawn, "PNG")
        title = f"Natural training images ({run.about})"
        yield _picture(f"natural-{number}", title, drawn.getvalue())


def _picture(name: str, title: str, image: bytes) -> Figure:
    address = "data:image/png;base64," + base64.b64encode(image).decode()
    return Figure(name=name, title=title, subtitle="one row a class", panels=[Picture(address=address)])


def planes(runs: Sequence[Shown], methods: Sequence[Method]) -> Iterator[Figure]:
    """For each round a panel for each method: its first run that has features."""
    saved: dict[int, tuple[Shown, dict[int, Path]]] = {}
    for run in runs:
        files = sorted((run.folder.path / "features").glob("round-*.safetensors"))
        if files and run.method not in saved:
            saved[run.method] = run, {int(file.stem.removeprefix("round-")): file for file in files}
    for round_ in sorted({round_ for _, files in saved.values() for round_ in files}):
        panels = []
        for method, (run, own) in sorted(saved.items()):
            label, names = methods[method].label, run.data["classes"]
            empty = Points(title=label, note="not saved", classes=names)
            panels.append(features.points(own[round_], names, label) if round_ in own else empty)
        yield Figure(
            name=f"features-{round_}",
            title=f"Features after round {round_}",
            subtitle="t-SNE of what models make of test and virtual images; "
            "colour: class, shape: model, ring: virtual",
            panels=panels,
        )
