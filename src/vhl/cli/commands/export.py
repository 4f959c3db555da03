"""`vhl export`: a run's model, to use elsewhere."""

from __future__ import annotations

import argparse

from vhl.cli.display import console
from vhl.runs.classifier import save_classifier
from vhl.runs.folder import RunFolder
from vhl.runs.model import trained_model


def main(arguments: argparse.Namespace) -> None:
    tensors, signature = trained_model(RunFolder(arguments.run), arguments.model)
    save_classifier(arguments.output, tensors, signature)
    console.print(
        f"{arguments.output}: {len(signature.classes)} classes. To use it:\n"
        f"  import vhl\n  model = vhl.load_model({str(arguments.output)!r})",
        markup=False,
        soft_wrap=True,
    )
