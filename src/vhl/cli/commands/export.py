"""`vhl export`: a run's model, to use elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from vhl.cli.arguments import Commands, add_command, add_model


def add(commands: Commands) -> None:
    parser = add_command(commands, "export", _export)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("-o", "--output", type=Path, default=Path("model.safetensors"))
    add_model(parser)


def _export(arguments: argparse.Namespace) -> None:
    """Write a run's model, without its virtual outputs, as safetensors."""
    from vhl.cli.display import say
    from vhl.runs.classifier import save_classifier
    from vhl.runs.folder import RunFolder
    from vhl.runs.model import trained_model

    tensors, signature = trained_model(RunFolder(arguments.run), arguments.model)
    save_classifier(arguments.output, tensors, signature)
    say(
        f"{arguments.output}: {len(signature.classes)} classes. To use it:\n"
        f"  import vhl\n  model = vhl.load_model({str(arguments.output)!r})"
    )
