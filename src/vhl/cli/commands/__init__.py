"""The commands: each file adds one to the command line, with its arguments, and says what it does.

`vhl --help` imports all of them and must answer at once. So a command's file imports nothing heavy at its
top: PyTorch, NumPy, pydantic, Rich and whatever needs them are imported in the functions that use them.
"""

from __future__ import annotations

from vhl.cli.commands import (
    bench,
    compare,
    data,
    deploy,
    export,
    help,
    init,
    paper,
    partition,
    predict,
    report,
    run,
    sweep,
    theory,
    virtual,
    watch,
)

COMMANDS = (
    *(init, help, run, sweep),
    *(compare, report, watch, theory, predict, export),
    *(data, partition, virtual),
    *(bench, paper, deploy),
)
"""In the order of `vhl --help`."""
