"""Tables: every cell of a few lines by hand, and that Markdown and LaTeX can be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from vhl.cli.main import build_parser
from vhl.paper.evidence import Evidence, identity
from vhl.paper.lines import lines
from vhl.paper.queue import Request, queue, select
from vhl.paper.rows import TABLES, rows
from vhl.paper.table import Table, every_table, table
from vhl.runs.digest import Digest

PLAIN, VHL = "cifar10/a0.1-e1-k10/fedavg", "cifar10/a0.1-e1-k10/fedavg-vhl"
SCAFFOLD = "cifar10/a0.05-e1-k10/scaffold"
Make = Callable[..., Digest]


def found(whole: Table, row: str) -> list[dict[str, str]]:
    """The lines of a row, by heading."""
    label = row.split("/", 1)[1]
    headings, *lines = whole.cells
    return [dict(zip(headings, cells, strict=True)) for cells in lines if cells[0] == label]


@pytest.fixture
def evidence(digest: Make) -> Evidence:
    """FedAvg with two seeds, VHL with three; one of each has more rounds."""
    million = 1_000_000
    return Evidence(
        [
            digest(PLAIN, [0.1] * 4 + [0.4567, 0.3] + [0.81] * 4, 0, samples=million),
            digest(PLAIN, [0.1] * 2 + [0.3] * 3 + [0.4467], 1, samples=million),
            digest(VHL, [0.3, 0.46, 0.4, 0.5, 0.6, 0.55], 0, samples=2 * million),
            digest(VHL, [0.3, 0.4, 0.4, 0.44, 0.7, 0.65], 1, samples=2 * million),
            digest(VHL, [0.3, 0.4, 0.4, 0.43, 0.5, 0.45], 2, samples=2 * million),
        ]
    )


# --- cells ---------------------------------------------------------------------------------------------


def test_every_cell_of_a_line_with_virtual_data(evidence: Evidence) -> None:
    (line,) = found(table("cifar10", evidence), VHL)
    assert line == {
        "row": "a0.1-e1-k10/fedavg-vhl",
        "virtual data": "stylegan",
        "profile": "paper",
        "lr": "0.01",
        "rounds": "6 of 1000",
        "seeds": "3",
        "best": "60.0 ± 10.0",  # 60, 70, 50
        "paper": "87.82",
        "Δ": "-27.8",
        "last 10 %": "55.0 ± 10.0",
        "gain / paper's": "+19.8 ± 7.8 (2 of 3 seeds) / +7.84",  # 60 − 45.67 and 70 − 44.67; 87.82 − 79.98
        "rounds to paper's target / paper's": "never (79 %) / 128 (79 %)",
        "rounds to our target": "4 (44 %)",  # rounds 2, 4 and 5
        "speed-up / paper's": "×1.8 / ×2.2",  # FedAvg's 5 and 6 over 2 and 4; 287 over 128
        "images to our target": "7.3 M",  # 4, 8 and 10
    }


def test_every_cell_of_a_line_without(evidence: Evidence) -> None:
    long, short = found(table("cifar10", evidence), PLAIN)
    assert long == {
        "row": "a0.1-e1-k10/fedavg",
        "virtual data": "–",
        "profile": "paper",
        "lr": "0.01",
        "rounds": "10 of 1000",
        "seeds": "1",
        "best": "81.0",
        "paper": "79.98",
        "Δ": "+1.0",
        "last 10 %": "81.0",
        "gain / paper's": "–",
        "rounds to paper's target / paper's": "7 (79 %) / 287 (79 %)",
        "rounds to our target": "7 (81 %)",
        "speed-up / paper's": "×1.0 / ×1.0",
        "images to our target": "7.0 M",
    }
    assert (short["rounds"], short["seeds"], short["best"]) == ("6 of 1000", "2", "45.2 ± 0.7")
    assert short["rounds to our target"] == "6 (44 %)"  # rounds 5 and 6: 5.5, to even
    assert short["rounds to paper's target / paper's"].startswith("never (79 %)")


def test_a_target_that_some_seeds_reached(digest: Make) -> None:
    digests = [digest(PLAIN, [0.3, 0.5], 0), digest(VHL, [0.5, 0.8], 0), digest(VHL, [0.3, 0.4], 1)]
    (line,) = found(table("cifar10", Evidence(digests)), VHL)
    assert line["rounds to our target"] == "1 (50 %, 1 of 2 seeds)"
    assert line["rounds to paper's target / paper's"] == "2 (79 %, 1 of 2 seeds) / 128 (79 %)"
    assert line["speed-up / paper's"] == "– / ×2.2" and line["images to our target"] == "–"


def test_a_whole_run(digest: Make) -> None:
    (line,) = found(table("cifar10", Evidence([digest(PLAIN, [0.1] * 1000)])), PLAIN)
    assert line["rounds"] == "1000"


def test_what_the_paper_never_reached(digest: Make) -> None:
    (line,) = found(table("cifar10", Evidence([digest(SCAFFOLD, [0.7])])), SCAFFOLD)
    assert line["lr"] == "0.001" and line["Δ"] == "+31.5"  # over 38.55
    assert line["rounds to paper's target / paper's"] == "1 (69 %) / never (69 %)"
    assert not {"rounds to our target", "speed-up", "speed-up / paper's"} & set(line)


def test_a_row_that_was_not_run(evidence: Evidence) -> None:
    whole = table("cifar10", evidence)
    assert whole.missing["a0.05-e1-k10/fedavg-vhl"] == 79.23
    assert not {PLAIN, VHL} & {f"cifar10/{label}" for label in whole.missing}
    _, words, commands = whole.markdown().split("\n\n")
    assert words.startswith("Not run, with the paper's best: `a0.1-e1-k10/fedprox` (83.56), ")
    assert words.endswith("`a0.1-e1-k100/fednova-vhl` (61.59).") and commands.startswith("```bash")
    assert max(map(len, words.splitlines())) <= 120
    assert whole.latex().splitlines()[1].startswith("% Not run, with the paper's best: `a0.1-")


def test_nothing_was_run() -> None:
    whole = table("partitions", Evidence([]))
    assert whole.cells == whole.commands == ()
    assert whole.markdown().startswith("Not run, with the paper's best: `classes-2/fedavg` (41.74), ")
    assert all(line.startswith("% ") for line in whole.latex().splitlines())


def test_everything_was_run() -> None:
    assert Table("svhn", (("row",), ("x",)), {}, ()).markdown() == "| row |\n| :-- |\n| x |\n"


def test_columns_and_parts_that_say_nothing_are_left_out(digest: Make) -> None:
    """The paper has nothing for rows of our own, and FedAvg was not run: no gain, no target."""
    light = "light/vhl-light/fedavg"
    (line,) = found(table("light", Evidence([digest(light, [0.3, 0.5])])), light)
    assert line == {
        "row": "vhl-light/fedavg",
        "virtual data": "stylegan",
        "profile": "paper",
        "lr": "0.01",
        "rounds": "2 of 300",
        "seeds": "1",
        "best": "50.0",
        "last 10 %": "50.0",
    }
    (line,) = found(table("light", Evidence([digest(light, [0.3, 0.5]), digest(PLAIN, [0.2, 0.4])])), light)
    assert (line["gain"], line["rounds to our target"], line["speed-up"]) == ("+10.0", "2 (40 %)", "×1.0")
    assert not {"paper", "Δ", "rounds to paper's target / paper's"} & set(line)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_there_in_order(name: str) -> None:
    expected = [row for row in rows().values() if row.table == name]
    missing = table(name, Evidence([])).missing
    assert list(missing.items()) == [(row.name.split("/", 1)[1], row.accuracy) for row in expected]


def test_all_tables_or_some() -> None:
    assert [one.name for one in every_table(Evidence([]))] == list(TABLES)
    assert [one.name for one in every_table(Evidence([]), ["svhn"])] == ["svhn"]


# --- as text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "further"])
def test_latex_can_be_read(evidence: Evidence, name: str) -> None:
    """Braces and dollars in pairs, as many columns as declared, and no letter that LaTeX takes otherwise."""
    whole = table(name, evidence)
    begin, *body, end = [line for line in whole.latex().splitlines() if not line.startswith("% ")]
    assert end == r"\end{tabular}"
    (layout,) = re.findall(r"^\\begin\{tabular\}\{([lr]+)\}$", begin)
    assert [line for line in body if not line.endswith(r"\\")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    cells = [line.removesuffix(r" \\").split(" & ") for line in body if line.endswith(r"\\")]
    assert {len(line) for line in cells} == {len(layout)} == {len(whole.cells[0])}
    assert len(cells) == len(whole.cells)
    for cell in (cell for line in cells for cell in line):
        assert cell.count("{") == cell.count("}") and cell.count("$") % 2 == 0
        assert not re.search(r"(?<!\\)[%_&#]|[^\x00-\x7f]", cell), cell


def test_latex_has_the_same_cells(evidence: Evidence) -> None:
    text = table("cifar10", evidence).latex()
    assert r"60.0 $\pm$ 10.0" in text and r"$\times$1.8 / $\times$2.2" in text
    assert r"never (79 \%) / 128 (79 \%)" in text and r" $\Delta$ " in text and " -- & " in text
    assert r"a\_b" in Table("cifar10", (("row",), ("a_b",)), {}, ()).latex()


def test_virtual_data_with_a_row_of_their_own_are_shown_there_alone(digest: Make) -> None:
    def shown(name: str, made: Evidence) -> list[str]:
        return [line["virtual data"] for line in found(table(rows()[name].table, made), name)]

    made = Evidence([digest(VHL, [0.5], virtual=virtual) for virtual in ("stylegan", "noise", "decoder")])
    assert shown(VHL, made) == ["stylegan", "noise"] == shown("further/batch-128/fedavg", made)
    assert shown("further/decoder/fedavg", made) == ["decoder"]
    assert shown("further/noise/fedavg", made) == ["noise"]
    other = VHL.replace("a0.1", "a0.05")  # no row is about decoders there
    assert shown(other, Evidence([digest(other, [0.5], virtual="decoder")])) == ["decoder"]


# --- commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        PLAIN,
        "cifar10/a0.05-e1-k10/fedavg-vhl",
        "further/tiny-imagenet/fedavg",
        "further/lambda-0.5/scaffold",
        "further/vfa/fednova",
        "feddf/a0.1/fedavg-vhl",
        "centralized/svhn/vhl",
        "partitions/classes-2/fedprox-vhl",
    ],
)
@pytest.mark.parametrize("profile", ["paper", "release"])
@pytest.mark.parametrize("virtual", ["stylegan", "noise", "dataset:tiny-imagenet"])
def test_a_command_asks_for_the_runs_of_its_line(digest: Make, name: str, profile: str, virtual: str) -> None:
    digests = [
        digest(name, [0.1] * rounds, seed, profile=profile, virtual=virtual)
        for seed, rounds in ((0, 2), (3, 4), (1, 4))
    ]
    evidence = Evidence(digests)
    whole = table(rows()[name].table, evidence)
    commands = [command for command in whole.commands if f" {name} " in command]
    asked = [parsed(command) for command in commands]
    measured = [(line.rounds, list(line.runs)) for line in lines(rows()[name], evidence)]
    assert (
        [(request.rounds, list(request.seeds)) for request in asked]
        == measured
        == [(4, [1, 3]), (2, [0, 1, 3])]
    )
    for request in asked:
        experiments = queue(request, Evidence([]))
        assert {identity(one) for one in experiments} == {identity(digests[0].experiment)}
        assert [one.seeds.batches for one in experiments] == list(request.seeds)
        assert {one.rounds for one in experiments} == {request.rounds}
    assert "```bash\n" + "\n".join(whole.commands) + "\n```\n" in whole.markdown()


def parsed(command: str) -> Request:
    program, *words = shlex.split(command)
    assert program == "vhl"
    asked = build_parser().parse_args(words)
    assert (asked.command, asked.action) == ("paper", "run")
    return Request(select(asked.rows), asked.profile, asked.virtual, asked.rounds, asked.seeds)


def test_feddfs_rows_do_not_show_fedavgs_runs(digest: Make) -> None:
    fedavg = "feddf/a0.1/fedavg"
    feddf = table("feddf", Evidence([digest(fedavg, [0.1, 0.5])]))
    assert [line["rounds"] for line in found(feddf, fedavg)] == ["2 of 100"]
    assert len(feddf.cells) == 2 and len(feddf.missing) == 11
