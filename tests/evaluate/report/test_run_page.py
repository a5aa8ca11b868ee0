"""The report of a run is one page that contains everything."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from crodobo.evaluate.run import run
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import CroDoBo


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("report")
    options = CroDoBo.Settings.of(warmup=2)
    run(RunSettings.of(queries=2, query_size=30, options=options), folder)
    return (folder / "report.html").read_text()


class Balance(HTMLParser):
    """Fails if a tag is closed that was not opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert not parser.open


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    sources = set(re.findall(r'(?:src|href)="(data:image/png;base64,|[^"]*)', page))
    assert all(source.startswith(("data:", "#")) for source in sources), "images and marks in the figures"
    assert "http" not in re.sub(r'"data:[^"]*"', "", page)


def test_the_figures_take_the_colours_of_the_page(page: str) -> None:
    assert page.count("<svg") == 2
    assert "<img" not in page
    figures = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "currentColor" in figures
    assert "#ffffff" not in figures
    ids = re.findall(r'<(?!path|clipPath|image)[a-z]+ [^>]*id="([^"]+)"', figures)
    assert not ids, "an id of one figure must not be that of another"


def test_settings_have_the_value_that_was_used(page: str) -> None:
    rows = dict(re.findall(r"<tr><td>([^<]*)</td><td>([^<]*)</td></tr>", page))
    expected = {"image size": "32", "queries": "2", "stream seed": "0", "backbone lr scale": "1.0", "weights": "none"}
    assert {name: rows[name] for name in expected} == expected
    assert "default" not in rows.values()
    assert "None" not in rows.values()


@pytest.mark.parametrize(
    "part", ["online accuracy", "one-pass accuracy", "By class", "Confusion matrix", "Protocol", "Settings", "torch"]
)
def test_the_page_has_every_part(page: str, part: str) -> None:
    assert part in page
