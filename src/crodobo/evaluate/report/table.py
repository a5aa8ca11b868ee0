"""Tables of numbers for people and programs: terminal, CSV, Markdown, LaTeX, and rows for a page."""

import csv
import io
from dataclasses import dataclass, field, replace
from typing import Literal

from rich.table import Table as RichTable


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Parameters
    ----------
    key, title
        Its name in files and for people.
    best
        Which value is the best one, if any.
    digits
        Behind the point.
    detail
        Whether it may be left out where there is little room, as a single class may.
    """

    key: str
    title: str
    best: Literal["highest", "lowest"] | None = None
    digits: int = 1
    detail: bool = False


@dataclass(frozen=True)
class Cell:
    """A number with its deviation over seeds, or with its interval, where it has one.

    >>> Cell(91.123, 0.456).text(), Cell(None).text(), Cell(0.31, digits=2).text()
    ('91.1 ± 0.5', '–', '0.31')
    >>> Cell(0.512, digits=2, interval=(0.5, 0.534)).text()
    '0.51 (0.50–0.53)'
    """

    value: float | None
    deviation: float | None = None
    digits: int = 1
    interval: tuple[float, float] | None = None

    def text(self, plus_minus: str = " ± ") -> str:
        """For people."""
        if self.value is None:
            return "–"
        spread = "" if self.deviation is None else f"{plus_minus}{self.deviation:.{self.digits}f}"
        if self.interval:
            low, high = (f"{bound:.{self.digits}f}" for bound in self.interval)
            spread = f" ({low}–{high})"
        return f"{self.value:.{self.digits}f}{spread}"


@dataclass(frozen=True)
class Row:
    """A labelled line of cells; `competes` says whether it takes part in being the best."""

    label: str
    cells: list[Cell]
    mark: str = ""
    competes: bool = True


@dataclass(frozen=True)
class Table:
    """Rows and columns, with a caption and notes below."""

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
        """A cell for people; a detail's deviation is for files alone, or tables would grow too wide."""
        cell = row.cells[number]
        return replace(cell, deviation=None).text() if self.columns[number].detail else cell.text(plus_minus)

    def to_csv(self) -> str:
        """A row a line, deviations in columns of their own."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        spread = [any(row.cells[n].deviation is not None for row in self.rows) for n in range(len(self.columns))]
        header = [self.head, "mark"]
        for column, has_spread in zip(self.columns, spread, strict=True):
            header += [column.key, f"{column.key}_sd"] if has_spread else [column.key]
        writer.writerow(header)
        for row in self.rows:
            line = [row.label, row.mark]
            for cell, has_spread in zip(row.cells, spread, strict=True):
                line.append(_number(cell.value))
                if has_spread:
                    line.append(_number(cell.deviation))
            writer.writerow(line)
        return text.getvalue()

    def to_markdown(self) -> str:
        """With the best of each column in bold."""
        lines = [[self.head, *(column.title for column in self.columns)]]
        lines.append(["---", *["---:"] * len(self.columns)])
        for row in self.rows:
            texts = [self.text(row, n) for n in range(len(self.columns))]
            texts = [f"**{text}**" if self.is_best(row, n) else text for n, text in enumerate(texts)]
            lines.append([row.label + row.mark, *texts])
        body = "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
        return "\n\n".join([f"**{self.caption}**", body, *self.notes]) + "\n"

    def to_latex(self) -> str:
        r"""For `\usepackage{booktabs}`, with the best of each column in bold."""
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
            texts = [_latex(self.text(row, n, r" $\pm$ "), escape=False) for n in range(len(self.columns))]
            texts = [rf"\textbf{{{text}}}" if self.is_best(row, n) else text for n, text in enumerate(texts)]
            lines.append("    " + " & ".join([_latex(row.label + row.mark), *texts]) + r" \\")
        lines += [r"    \bottomrule", r"  \end{tabular}"]
        lines += [rf"  \\ {{\footnotesize {_latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def to_terminal(self, detailed: bool = True) -> RichTable:
        """For a console."""
        chosen = [n for n, column in enumerate(self.columns) if detailed or not column.detail]
        table = RichTable(title=self.caption, title_justify="left", caption_justify="left")
        table.add_column(self.head, no_wrap=True)
        for n in chosen:
            table.add_column(self.columns[n].title, justify="right", no_wrap=True)
        for row in self.rows:
            texts = [self.text(row, n) for n in chosen]
            bold = [f"[bold]{t}[/bold]" if self.is_best(row, n) else t for n, t in zip(chosen, texts, strict=True)]
            table.add_row(row.label + row.mark, *bold)
        table.caption = "\n".join(self.notes) or None
        return table


def _shown(cell: Cell) -> float | None:
    """The value as it is shown: what looks the same is equally good."""
    return None if cell.value is None else round(cell.value, cell.digits)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


LATEX = {"–": "--", "±": r"$\pm$", "†": r"$\dagger$", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "→": r"$\to$"}
LATEX |= {"$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"\\": r"\textbackslash{}"}
LATEX |= {"λ": r"$\lambda$", "τ": r"$\tau$", "ℓ": r"$\ell$", "α": r"$\alpha$"}


def _latex(text: str, escape: bool = True) -> str:
    signs: dict[str, str | int | None] = {sign: to for sign, to in LATEX.items() if escape or sign in "–±"}
    return text.translate(str.maketrans(signs))
