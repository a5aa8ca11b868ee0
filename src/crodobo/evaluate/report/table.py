"""Tables of numbers, as terminal output, CSV, Markdown or LaTeX."""

import csv
import io
from dataclasses import dataclass, field, replace
from typing import Literal

from rich.table import Table as RichTable


@dataclass(frozen=True)
class Column:
    """A column of numbers."""

    key: str  # name in files
    title: str  # name to show
    best: Literal["highest", "lowest"] | None = None
    digits: int = 1  # after the decimal point
    detail: bool = False  # left out of a narrow terminal, as the column of one class


@dataclass(frozen=True)
class Cell:
    """A number, optionally with its deviation over seeds or with an interval.

    >>> Cell(91.123, 0.456).text(), Cell(None).text(), Cell(0.512, digits=2, interval=(0.5, 0.534)).text()
    ('91.1 ± 0.5', '–', '0.51 (0.50–0.53)')
    """

    value: float | None
    deviation: float | None = None
    digits: int = 1
    interval: tuple[float, float] | None = None

    def text(self, plus_minus: str = " ± ") -> str:
        """The cell as shown."""
        if self.value is None:
            return "–"
        spread = "" if self.deviation is None else f"{plus_minus}{self.deviation:.{self.digits}f}"
        if self.interval:
            low, high = (f"{bound:.{self.digits}f}" for bound in self.interval)
            spread = f" ({low}–{high})"
        return f"{self.value:.{self.digits}f}{spread}"


@dataclass(frozen=True)
class Row:
    """A labelled row. `competes` says whether its values can be the best of a column."""

    label: str
    cells: list[Cell]
    mark: str = ""
    competes: bool = True


@dataclass(frozen=True)
class Table:
    """Rows and columns, with a caption above and notes below."""

    caption: str
    head: str
    columns: list[Column]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def is_best(self, row: Row, number: int) -> bool:
        """Whether a cell has the best value of its column among the rows that compete."""
        best = self.columns[number].best
        shown = [_shown(each.cells[number]) for each in self.rows if each.competes]
        known = {value for value in shown if value is not None}
        if best is None or not row.competes or len(known) < 2:
            return False
        return _shown(row.cells[number]) == (max(known) if best == "highest" else min(known))

    def text(self, row: Row, number: int, plus_minus: str = " ± ") -> str:
        """A cell as shown. Deviations of details are only in the CSV, to keep tables narrow."""
        cell = row.cells[number]
        return replace(cell, deviation=None).text() if self.columns[number].detail else cell.text(plus_minus)

    def _texts(self, row: Row, bold: str, plus_minus: str = " ± ") -> list[str]:
        """The cells of a row as shown, with the best of each column in the pattern `bold`."""
        texts = [self.text(row, number, plus_minus) for number in range(len(self.columns))]
        return [bold.format(text) if self.is_best(row, number) else text for number, text in enumerate(texts)]

    def to_csv(self) -> str:
        """CSV with deviations in columns of their own."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        deviates = [any(row.cells[n].deviation is not None for row in self.rows) for n in range(len(self.columns))]
        header = [self.head, "mark"]
        for column, has_deviation in zip(self.columns, deviates, strict=True):
            header += [column.key, f"{column.key}_sd"] if has_deviation else [column.key]
        writer.writerow(header)
        for row in self.rows:
            line = [row.label, row.mark]
            for cell, has_deviation in zip(row.cells, deviates, strict=True):
                values = [cell.value, cell.deviation] if has_deviation else [cell.value]
                line += ["" if value is None else f"{value:.4f}" for value in values]
            writer.writerow(line)
        return text.getvalue()

    def to_markdown(self) -> str:
        """Markdown with the best of each column in bold."""
        lines = [[self.head, *(column.title for column in self.columns)]]
        lines.append(["---", *["---:"] * len(self.columns)])
        lines += [[row.label + row.mark, *self._texts(row, "**{}**")] for row in self.rows]
        body = "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
        return "\n\n".join([f"**{self.caption}**", body, *self.notes]) + "\n"

    def to_latex(self) -> str:
        r"""LaTeX for `\usepackage{booktabs}`, with the best of each column in bold."""
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex(self.caption)}}}",
            rf"  \begin{{tabular}}{{l{'r' * len(self.columns)}}}",
            r"    \toprule",
            "    " + " & ".join(map(_latex, [self.head, *(column.title for column in self.columns)])) + r" \\",
            r"    \midrule",
        ]
        for row in self.rows:
            texts = [_latex(text, escape=False) for text in self._texts(row, r"\textbf{{{}}}", r" $\pm$ ")]
            lines.append("    " + " & ".join([_latex(row.label + row.mark), *texts]) + r" \\")
        lines += [r"    \bottomrule", r"  \end{tabular}"]
        lines += [rf"  \\ {{\footnotesize {_latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def without_details(self) -> "Table":
        """The same table without the columns of details."""
        return self.only([number for number, column in enumerate(self.columns) if not column.detail])

    def only(self, numbers: list[int]) -> "Table":
        """The same table with some of its columns."""
        rows = [replace(row, cells=[row.cells[number] for number in numbers]) for row in self.rows]
        return replace(self, columns=[self.columns[number] for number in numbers], rows=rows)

    def to_terminal(self) -> RichTable:
        """A table for rich."""
        table = RichTable(title=self.caption, title_justify="left", caption_justify="left")
        table.add_column(self.head, no_wrap=True)
        for column in self.columns:
            table.add_column(column.title, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(row.label + row.mark, *self._texts(row, "[bold]{}[/bold]"))
        table.caption = "\n".join(self.notes) or None
        return table


def _shown(cell: Cell) -> float | None:
    """The value with the digits that are shown. Values that look the same are equally good."""
    return None if cell.value is None else round(cell.value, cell.digits)


LATEX = {"–": "--", "±": r"$\pm$", "†": r"$\dagger$", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "→": r"$\to$"}
LATEX |= {"$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"\\": r"\textbackslash{}", "λ": r"$\lambda$", "τ": r"$\tau$", "ℓ": r"$\ell$", "α": r"$\alpha$"}


def _latex(text: str, escape: bool = True) -> str:
    signs: dict[str, str | int | None] = {sign: to for sign, to in LATEX.items() if escape or sign in "–±"}
    return text.translate(str.maketrans(signs))
