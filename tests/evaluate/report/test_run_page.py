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
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', page)
    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in re.sub(r'"data:[^"]*"', "", page)


@pytest.mark.parametrize(
    "part", ["online accuracy", "one-pass accuracy", "By class", "Confusion matrix", "Protocol", "Settings", "torch"]
)
def test_the_page_has_every_part(page: str, part: str) -> None:
    assert part in page
