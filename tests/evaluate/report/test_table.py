"""Tables: the same numbers in CSV, Markdown and LaTeX, and which values are best."""

import csv
import io
import re

import pytest
from rich.console import Console

from crodobo.cli.comparison import print_table
from crodobo.evaluate.report.table import Cell, Column, Row, Table


@pytest.fixture
def table() -> Table:
    """Two rows that compete, a better one that does not, and one without values."""
    return Table(
        caption="Accuracy on R&D_set #1 (%), seeds 0, 1",
        head="method",
        columns=[
            Column("class_a|b", "a|b", "highest", detail=True),
            Column("online", "online", "highest"),
            Column("cost", "cost", "lowest"),
            Column("paper_online", "paper online"),
        ],
        rows=[
            Row("w/o ℓ_ent", [Cell(10.0, 1.0), Cell(50.04, 0.26), Cell(3.0), Cell(60.0)]),
            Row("τ → λ", [Cell(20.0), Cell(49.8, 1.0), Cell(2.0), Cell(None)]),
            Row("keeper", [Cell(99.0), Cell(99.0), Cell(1.0), Cell(70.0)], mark="†", competes=False),
            Row("failed", [Cell(None), Cell(None), Cell(None), Cell(None)]),
        ],
        notes=["† keeps 100 % of it.", "At λ = 0.4 & τ_x."],
    )


def cells(markdown: str) -> list[list[str]]:
    """The cells of a Markdown table without its two heading lines."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_csv_has_plain_numbers_and_columns_for_deviations(table: Table) -> None:
    head, *rows = csv.reader(io.StringIO(table.to_csv()))
    assert head == ["method", "mark", "class_a|b", "class_a|b_sd", "online", "online_sd", "cost", "paper_online"]
    assert rows == [
        ["w/o ℓ_ent", "", "10.0000", "1.0000", "50.0400", "0.2600", "3.0000", "60.0000"],
        ["τ → λ", "", "20.0000", "", "49.8000", "1.0000", "2.0000", ""],
        ["keeper", "†", "99.0000", "", "99.0000", "", "1.0000", "70.0000"],
        ["failed", "", "", "", "", "", "", ""],
    ]


def test_csv_quotes_special_characters() -> None:
    table = Table("", "method", [Column("x", "x")], [Row('a, "b"\nc', [Cell(1.0)])])
    assert list(csv.reader(io.StringIO(table.to_csv())))[1] == ['a, "b"\nc', "", "1.0000"]


def test_markdown_shows_the_best_competing_value_in_bold(table: Table) -> None:
    assert cells(table.to_markdown()) == [
        ["w/o ℓ_ent", "10.0", "**50.0 ± 0.3**", "3.0", "60.0"],
        ["τ → λ", "**20.0**", "49.8 ± 1.0", "**2.0**", "–"],
        ["keeper†", "99.0", "99.0", "1.0", "70.0"],
        ["failed", "–", "–", "–", "–"],
    ]
    assert "| method | a\\|b | online | cost | paper online |" in table.to_markdown()
    assert table.to_markdown().startswith("**Accuracy on R&D_set #1 (%), seeds 0, 1**\n\n| method |")
    assert table.to_markdown().endswith("\n\n† keeps 100 % of it.\n\nAt λ = 0.4 & τ_x.\n")


def test_latex_escapes_special_characters_and_shows_the_best_in_bold(table: Table) -> None:
    lines = [line.strip() for line in table.to_latex().splitlines()]
    assert r"\caption{Accuracy on R\&D\_set \#1 (\%), seeds 0, 1}" in lines
    assert r"\begin{tabular}{lrrrr}" in lines
    assert r"w/o $\ell$\_ent & 10.0 & \textbf{50.0 $\pm$ 0.3} & 3.0 & 60.0 \\" in lines
    assert r"$\tau$ $\to$ $\lambda$ & \textbf{20.0} & 49.8 $\pm$ 1.0 & \textbf{2.0} & -- \\" in lines
    assert r"keeper$\dagger$ & 99.0 & 99.0 & 1.0 & 70.0 \\" in lines
    assert r"failed & -- & -- & -- & -- \\" in lines
    assert r"\\ {\footnotesize $\dagger$ keeps 100 \% of it.}" in lines
    assert r"\\ {\footnotesize At $\lambda$ = 0.4 \& $\tau$\_x.}" in lines
    body = [line for line in lines if line.endswith(r"\\")]
    assert {line.count("&") - line.count(r"\&") for line in body} == {4}
    assert (lines[1], lines[-1]) == (r"\begin{table}", r"\end{table}")
    assert r"\end{tabular}" in lines


@pytest.mark.parametrize("sign", ["$", "{", "}", "\\", "~", "^"])
def test_latex_escapes_every_special_character(sign: str) -> None:
    latex = Table("", "method", [Column("x", f"a{sign}b")], [Row("row", [Cell(1.0)])]).to_latex()
    head = next(line for line in latex.splitlines() if "method" in line)
    assert f"a{sign}b" not in head


def test_every_character_of_a_study_can_be_written_in_latex() -> None:
    from crodobo.evaluate.comparison.studies import STUDIES

    for study in STUDIES.values():
        texts = [entry.label for entry in study.entries] + [entry.column for entry in study.entries]
        latex = Table(study.shows, "x", [], [Row(text, []) for text in texts]).to_latex()
        assert latex.isascii(), [sign for sign in latex if not sign.isascii()]


def test_a_single_competing_value_is_not_the_best() -> None:
    rows = [Row("a", [Cell(1.0)]), Row("b", [Cell(2.0)], competes=False), Row("c", [Cell(None)])]
    table = Table("", "", [Column("x", "x", "highest")], rows)
    assert not any(table.is_best(row, 0) for row in rows)


def test_values_that_look_the_same_are_equally_good() -> None:
    rows = [Row(name, [Cell(1.0), Cell(value), Cell(value)]) for name, value in (("a", 1.01), ("b", 1.04), ("c", 2.0))]
    columns = [Column("x", "x", "lowest"), Column("y", "y", "lowest"), Column("z", "z")]
    table = Table("", "", columns, rows)
    assert [[table.is_best(row, n) for row in rows] for n in range(3)] == [
        [False] * 3,
        [True, True, False],
        [False] * 3,
    ]


@pytest.mark.parametrize("detailed", [True, False])
def test_the_terminal_can_omit_details(table: Table, detailed: bool) -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print((table if detailed else table.without_details()).to_terminal())
    text = console.export_text()
    assert ("a|b" in text) == detailed
    assert "50.0 ± 0.3" in text
    assert "keeper†" in text
    assert "† keeps 100 % of it." in text


def test_a_table_wider_than_the_terminal_is_printed_in_parts_and_no_number_is_cut() -> None:
    columns = [Column(f"x{number}", f"τ {number}", "highest") for number in range(12)]
    rows = [Row(name, [Cell(40.0 + number, 1.5) for number in range(12)]) for name in ("online", "one-pass")]
    console = Console(width=80, file=io.StringIO(), record=True)
    assert print_table(console, Table("Sensitivity", "metric", columns, rows, ["A note."]))
    text = console.export_text()
    assert "…" not in text
    assert all(f"{40 + number}.0 ± 1.5" in text for number in range(12))
    assert (text.count("Sensitivity"), text.count("A note."), text.count("metric")) == (1, 1, 3)
