"""The page of a comparison: complete, self-contained, and sortable in a real browser."""

import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from crodobo.burn.levels import BURNED
from crodobo.evaluate.comparison import Entry, Results
from crodobo.evaluate.comparison.studies import STUDIES
from crodobo.evaluate.report.comparison_page import write_comparison

Fabricate = Callable[..., Results]
ONLINE = {"ent": [9.5], "dan": [50.0], "crodobo": [100.0], "coral": [80.0], "conda": [70.0]}
AS_WRITTEN = ["ent", "dan", "mdd", "crodobo", "coral", "conda†"]


@pytest.fixture
def page(fabricate: Fabricate, tmp_path: Path) -> Path:
    """A page about methods with different figures. One method failed."""
    entries = [Entry(name, name, name) for name in ("ent", "dan", "mdd", "crodobo", "coral", "conda")]
    write_comparison(fabricate(entries, ONLINE, problems={"mdd, seed 0": 'no <room> & "no time"'}))
    return tmp_path / "report.html"


class Reader(HTMLParser):
    """Reads the rows, headings and order of the first sortable table, and checks that all tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables = 0
        self.rows: list[list[str]] = []
        self.heads: list[str] = []
        self.order: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)
        given = dict(attrs)
        if tag == "table" and given.get("class") == "sortable":
            self.tables += 1
        if self.tables != 1:
            return
        if tag == "tr" and "tbody" in self.open:
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
        elif tag == "th":
            self.heads.append("")
            if given.get("aria-sort"):
                self.order[str(len(self.heads) - 1)] = str(given["aria-sort"])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.tables != 1 or not self.open:
            return
        if self.open[-1] == "td":
            self.rows[-1][-1] += data
        elif self.open[-1] == "th":
            self.heads[-1] += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_the_page_is_well_formed_and_holds_the_table(page: Path) -> None:
    reader = read(page.read_text(encoding="utf-8"))
    assert not reader.open
    assert reader.heads == ["method", "plane", "bike", "online", "one-pass"]
    assert [row[0] for row in reader.rows] == AS_WRITTEN
    assert reader.order == {}
    assert page.read_text(encoding="utf-8").count('class="aside"') == 2, (
        "conda, among the accuracies and among the costs"
    )


def test_the_page_needs_nothing_from_outside(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,60})', html)
    assert sources
    assert all(source.startswith(("#", "runs/")) for source in sources)
    assert "http" not in re.sub(r'"data:[^"]*"', "", html)


def test_the_protocol_says_which_entries_were_not_burned(fabricate: Fabricate, tmp_path: Path) -> None:
    entries = [Entry("ent", "ENT", "ent"), Entry("dan", "DAN", "dan"), Entry("conda", "ConDA", "conda")]
    results = fabricate(entries, {"ent": [50.0], "dan": [50.0], "conda": [60.0]})
    for row in results.rows:
        burned = BURNED["off" if row.keeps_target else "standard"]
        row.online[0]["protocol"] |= {"burned": burned, "learning": row.entry.key}
    write_comparison(results)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{BURNED['standard']} (ENT, DAN); {BURNED['off']} (ConDA)" in html
    assert "learning" not in results.protocol, "each has its own"
    assert results.protocol["order"] == "adapt-then-predict"


def test_failures_are_shown_and_escaped(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert "<h2>Failed runs</h2>" in html
    assert "<b>mdd, seed 0</b>: no &lt;room&gt; &amp; &#34;no time&#34;" in html
    assert "runs/mdd-seed0" not in html


def test_a_page_without_failures_does_not_mention_any(fabricate: Fabricate, tmp_path: Path) -> None:
    write_comparison(fabricate([Entry("ent", "ent", "ent")], {"ent": [50.0]}))
    assert "Failed runs" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_of_a_study_has_its_figures_and_description(fabricate: Fabricate, tmp_path: Path) -> None:
    study = STUDIES["tau"]
    online = {entry.key: [50.0 + number, 51.0] for number, entry in enumerate(study.entries)}
    write_comparison(fabricate(study.entries, online), study)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Study tau on glyphs" in html
    assert "<h2>Sensitivity</h2>" in html
    assert html.count("<svg") == 2
    assert (tmp_path / "sensitivity.png").read_bytes().startswith(b"\x89PNG")
    assert not read(html).open


def test_a_page_is_written_even_if_everything_failed(fabricate: Fabricate, tmp_path: Path) -> None:
    for study in (None, STUDIES["tau"], STUDIES["orders"]):
        entries = study.entries if study else [Entry("ent", "ent", "ent")]
        write_comparison(fabricate(entries, {}, problems={"ent, seed 0": "no room"}), study)
        assert "no room" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "streaming.png").exists()


def test_the_data_is_json_with_everything_measured(page: Path) -> None:
    data = json.loads((page.parent / "comparison.json").read_text(encoding="utf-8"))
    assert data["entries"]["crodobo"]["online"]["0"]["online_accuracy"] == pytest.approx(1.0)
    assert data["entries"]["mdd"]["online"] == {}
    assert data["entries"]["conda"]["keeps_target"] is True
    assert data["problems"] == {"mdd, seed 0": 'no <room> & "no time"'}


def clicked(chromium: str, page: Path, script: str) -> Reader:
    """The page in a browser after a script. `heads` are the headings of the first table."""
    copy = page.with_name("clicked.html")
    heads = 'const heads = [...document.querySelector("table.sortable").tHead.rows[0].cells];'
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"<script>{heads}{script}</script></body>"))
    shown = subprocess.run(
        [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", copy.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return read(shown.stdout)


@pytest.mark.parametrize(
    ("script", "names", "order"),
    [
        ("heads[3].click()", ["crodobo", "coral", "conda†", "dan", "ent", "mdd"], {"3": "descending"}),
        (
            "heads[3].click(); heads[3].click()",
            ["ent", "dan", "conda†", "coral", "crodobo", "mdd"],
            {"3": "ascending"},
        ),
        ("heads[3].click(); heads[0].click()", sorted(AS_WRITTEN), {"0": "ascending"}),
        ("heads[0].click(); heads[0].click()", sorted(AS_WRITTEN, reverse=True), {"0": "descending"}),
        ("heads[2].click()", AS_WRITTEN, {"2": "descending"}),
        (
            'heads[4].dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}))',
            ["crodobo", "coral", "conda†", "dan", "ent", "mdd"],
            {"4": "descending"},
        ),
    ],
    ids=["once", "twice", "name", "name twice", "all missing", "Enter"],
)
def test_a_click_on_a_heading_sorts_the_table(
    chromium: str, page: Path, script: str, names: list[str], order: dict[str, str]
) -> None:
    shown = clicked(chromium, page, script)
    assert [row[0] for row in shown.rows] == names
    assert shown.order == order
    written = {row[0]: row for row in read(page.read_text(encoding="utf-8")).rows}
    assert all(row == written[row[0]] for row in shown.rows), "rows move whole"
    assert shown.tables == 2
