"""The command line's grammar. Nothing heavy is imported here: `vhl --help` answers at once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vhl import __version__

_SETTINGS = "settings such as rounds=50, algorithm=fedprox, algorithm.mu=0.1; `vhl help KEY` explains them"


class _Parser(argparse.ArgumentParser):
    """Options are written out: of `--data x`, a slip for data=x, nobody should get `--data-dir x`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vhl",
        description="Federated learning on non-IID data, with and without Virtual Homogeneity Learning.",
        epilog="Start with: vhl run data=digits objective=vhl rounds=50",
    )
    parser.add_argument("--version", action="version", version=f"vhl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_running(commands)
    _add_results(commands)
    _add_data(commands)
    _add_bench(commands)
    _add_paper(commands)
    _add_deploy(commands)
    return parser


Commands = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_running(commands: Commands) -> None:  # type: ignore[valid-type]
    init = _command(commands, "init", "write a commented experiment to start from")
    init.add_argument("file", nargs="?", type=Path, default=Path("experiment.toml"))

    help_ = _command(commands, "help", "explain settings and list what they can be")
    help_.add_argument("key", nargs="?", help="such as training, algorithm, algorithm.mu or objective=vhl")

    run = _command(commands, "run", "run an experiment")
    run.add_argument("settings", nargs="*", metavar="EXPERIMENT.toml | KEY=VALUE", help=_SETTINGS)
    run.add_argument(
        "--resume", action="store_true", help="continue a run that was cut off, or give it more rounds"
    )
    _add_run_options(run)
    _add_live(run)

    sweep = _command(commands, "sweep", "run every combination of several values; start again to continue")
    sweep.add_argument(
        "settings",
        nargs="+",
        metavar="EXPERIMENT.toml | KEY=A,B,C",
        help="as for `vhl run`, with several values where wanted",
    )
    sweep.add_argument(
        "--name", default="sweep", help="folder of the sweep under --runs-dir (default: sweep)"
    )
    _add_run_options(sweep)
    _add_live(sweep)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seeds", type=_seeds, metavar="0,1,2", help="repeat with these seeds, on the same data"
    )
    parser.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), help="where run folders go (default: %(default)s)"
    )
    parser.add_argument(
        "--at-once",
        type=_count,
        metavar="N",
        help="runs that go side by side in this process (default: 4 on a GPU, else 1)",
    )
    parser.add_argument(
        "--track",
        type=lambda text: text.split(","),
        default=[],
        metavar="tensorboard,mlflow,wandb",
        help="copy every round to these tools as well, each an extra: pip install 'vhl[tensorboard]'",
    )
    _add_data_dir(parser)


def _add_results(commands: Commands) -> None:  # type: ignore[valid-type]
    compare = _command(commands, "compare", "compare runs: accuracy, cost to a target, drift, verdict")
    _add_compared(compare)

    report = _command(commands, "report", "make a page of runs: figures, tables, verdict")
    _add_compared(report)
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="default: report.html")
    report.add_argument("--figures", type=Path, metavar="DIR", help="write every figure as PNG and SVG too")
    report.add_argument(
        "--show-natural", action="store_true", help="show natural training images too, which may be private"
    )
    _add_data_dir(report)

    watch = _command(commands, "watch", "show the page of runs in a browser while they train")
    watch.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    _add_server(watch)

    theory = _command(commands, "theory", "measure every term of the paper's theorem on a run's models")
    theory.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    theory.add_argument(
        "--round",
        dest="rounds",
        type=_count,
        action="append",
        metavar="R",
        help="of this kept round, and again for more (default: all of keep_at, and the last)",
    )
    theory.add_argument(
        "--virtual",
        metavar="GENERATOR",
        help="virtual data to measure against, or a run that was trained on some (default: the run's own)",
    )
    theory.add_argument(
        "--results", type=Path, help="keep the run's record, with the terms, in this folder of records too"
    )
    _add_data_dir(theory)

    predict = _command(commands, "predict", "name the classes of images with a run's model")
    predict.add_argument(
        "run", type=Path, metavar="RUN", help="a run folder, or a file that `vhl export` wrote"
    )
    predict.add_argument("path", type=Path, metavar="PATH", help="an image, or a folder of images")
    predict.add_argument(
        "--model", metavar="best|last|ROUND", help="which model of the run (default: best, else last)"
    )

    export = _command(commands, "export", "write a run's model, without its virtual outputs, as safetensors")
    export.add_argument("run", type=Path, metavar="RUN")
    export.add_argument("-o", "--output", type=Path, default=Path("model.safetensors"))
    export.add_argument(
        "--model", metavar="best|last|ROUND", help="which model of the run (default: best, else last)"
    )


def _add_data(commands: Commands) -> None:  # type: ignore[valid-type]
    data = _command(commands, "data", "get, list and check datasets")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("list", "every data source, and whether its files are there"),
        ("get", "download the official files, checked"),
        ("check", "say whether the files are readable, and official"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        if name != "list":
            action.add_argument("name", metavar="NAME", help="such as cifar10")
        _add_data_dir(action)

    partition = _command(commands, "partition", "show how the data are dealt out to clients")
    partition.add_argument("settings", nargs="*", metavar="EXPERIMENT.toml | KEY=VALUE", help=_SETTINGS)
    _add_data_dir(partition)

    virtual = _command(commands, "virtual", "make the virtual set and a picture of it")
    virtual.add_argument("settings", nargs="*", metavar="EXPERIMENT.toml | KEY=VALUE", help=_SETTINGS)
    virtual.add_argument(
        "-o", "--output", type=Path, default=Path("virtual.npz"), help="images and labels (.npz)"
    )
    virtual.add_argument(
        "--picture", type=Path, help="picture grid, classes × samples (default: beside the output)"
    )
    virtual.add_argument("--samples", type=_count, default=10, help="samples a class in the picture")
    _add_data_dir(virtual)


def _add_bench(commands: Commands) -> None:  # type: ignore[valid-type]
    bench = _command(commands, "bench", "measure how fast training is here, alone and against others")
    bench.add_argument("settings", nargs="*", metavar="EXPERIMENT.toml | KEY=VALUE", help=_SETTINGS)
    bench.add_argument("--rounds", type=_count, default=10, help="rounds to run; the first is not counted")
    bench.add_argument(
        "--seeds", type=_seeds, metavar="0,1", help="run these seeds side by side and count them together"
    )
    bench.add_argument(
        "--against",
        type=lambda text: text.split(","),
        metavar="plain,pfl,flower",
        help="others that do the same work in the same run: a loop by hand, pfl-research, Flower",
    )
    bench.add_argument("--peer-rounds", type=_count, default=4, help="rounds of each of them (default: 4)")
    bench.add_argument("-o", "--output", type=Path, help="JSON file (default: one in benchmarks/results/)")
    _add_data_dir(bench)


def _add_paper(commands: Commands) -> None:  # type: ignore[valid-type]
    paper = _command(commands, "paper", "repeat the paper: its rows, tables and figures")
    actions = paper.add_subparsers(dest="action", metavar="ACTION", required=True)
    rows = "rows: a name, the beginning of one (cifar10, further/naive), or a pattern ('*/fedavg*')"

    list_ = _command(actions, "list", "every row of every table, and what of it was measured")
    list_.add_argument("rows", nargs="*", metavar="ROW", help=rows)

    run = _command(actions, "run", "run rows that are not measured yet; start again to continue")
    run.add_argument("rows", nargs="+", metavar="ROW", help=rows)
    run.add_argument("--rounds", type=_count, help="rounds (default: the paper's)")
    run.add_argument(
        "--budget",
        type=_minutes,
        metavar="MINUTES",
        help="stop after the round that is under way then, with everything saved",
    )
    run.add_argument(
        "--profile",
        choices=("paper", "release"),
        default="paper",
        help="see `vhl help profile` (default: paper)",
    )
    run.add_argument(
        "--virtual",
        default="stylegan",
        metavar="GENERATOR",
        help="virtual data of rows that have the paper's usual ones (default: stylegan)",
    )
    _add_run_options(run)
    run.set_defaults(runs_dir=Path("runs/paper"))

    table = _command(actions, "table", "the paper's tables with our numbers beside its own")
    table.add_argument("name", nargs="?", metavar="TABLE", help="such as cifar10 or further (default: all)")
    table.add_argument("--latex", action="store_true", help="as LaTeX (default: Markdown)")
    table.add_argument(
        "--into", type=Path, metavar="FILE", help="renew the tables and verdicts in this document"
    )

    figure = _command(actions, "figure", "the paper's figures from our numbers")
    figure.add_argument(
        "name", metavar="FIGURE", help="convergence-cifar10, main, drift, ablation, features-clients, ..."
    )
    figure.add_argument("-o", "--output", type=Path, help="PNG, SVG or PDF file (default: FIGURE.png)")
    figure.add_argument(
        "--runs",
        type=Path,
        default=Path("runs/paper"),
        help="run folders, for features (default: runs/paper)",
    )
    for action in (list_, run, table, figure):
        action.add_argument(
            "--results",
            type=Path,
            default=Path("results"),
            help="where records of runs lie (default: results)",
        )


def _add_deploy(commands: Commands) -> None:  # type: ignore[valid-type]
    deploy = _command(commands, "deploy", "train where the data are: the experiment as a Flower app")
    actions = deploy.add_subparsers(dest="action", metavar="ACTION", required=True)
    runs_dir = {"type": Path, "default": Path("runs"), "help": "where run folders go (default: runs)"}

    init = _command(actions, "init", "write the app folder, ready for `flwr run`")
    init.add_argument("folder", type=Path, metavar="FOLDER")
    init.add_argument("settings", nargs="*", metavar="EXPERIMENT.toml | KEY=VALUE", help=_SETTINGS)
    init.add_argument("--sites", type=_count, required=True, metavar="N", help="sites that take part")
    init.add_argument(
        "--test",
        default="",
        metavar="folder:PATH",
        help="the server's own test images (default: what the sites hold out counts)",
    )
    init.add_argument("--runs-dir", **runs_dir)  # type: ignore[arg-type]
    _add_data_dir(init)

    keys = _command(actions, "keys", "make certificates and keys")
    whose = keys.add_subparsers(dest="whose", metavar="WHOSE", required=True)
    server = _command(whose, "server", "on the server: an authority and the server's certificate")
    server.add_argument("folder", type=Path, metavar="FOLDER")
    server.add_argument(
        "--host", action="append", required=True, metavar="NAME", help="its name or address; again for more"
    )
    site = _command(whose, "site", "at a site: its node's key")
    site.add_argument("folder", type=Path, metavar="FOLDER")
    site.add_argument("name", metavar="NAME", help="the site's name")

    local = _command(actions, "local", "try it on this machine: a server and N sites, with TLS")
    local.add_argument("sites", type=_count, metavar="N", help="sites; each has a part of the data")
    local.add_argument("settings", nargs="*", metavar="EXPERIMENT.toml | KEY=VALUE", help=_SETTINGS)
    local.add_argument("--runs-dir", **runs_dir)  # type: ignore[arg-type]
    local.add_argument("--resume", action="store_true", help="continue a run that was cut off")
    local.add_argument("--insecure", action="store_true", help="without TLS, and without keys")

    text = _command(actions, "commands", "print what to type on the server and at each site")
    text.add_argument("app", type=Path, metavar="FOLDER", help="what `vhl deploy init` wrote")
    text.add_argument("--host", required=True, metavar="NAME", help="the server's name or address")
    text.add_argument(
        "--site", action="append", required=True, metavar="NAME", help="a site's name; again for each"
    )


def _command(commands: Commands, name: str, summary: str) -> argparse.ArgumentParser:  # type: ignore[valid-type]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)  # type: ignore[attr-defined]
    return parser


def _add_compared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run folders, the first of them the baseline; or a folder of runs, where plain ones come first",
    )
    parser.add_argument(
        "--target",
        type=_percent,
        help="accuracy in percent (default: what every seed of the first method reached)",
    )
    parser.add_argument(
        "--last",
        type=_percent,
        default="10",
        metavar="PERCENT",
        help="share of last rounds to average accuracies over and judge by (default: 10; more is steadier)",
    )


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets lie (default: $VHL_DATA, else the user's cache)"
    )


def _add_live(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="show the report in a browser while it trains")
    _add_server(parser)


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, help="of the page (default: any that is free)")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="who may open it (default: this machine alone)"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def _percent(text: str) -> float:
    """As a share of 1."""
    try:
        share = float(text) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage above 0 and up to 100")
    return share


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes")
    return minutes


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 0,1,2") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r}: seeds are different whole numbers from 0 up")
    return seeds
