"""The documentation site builds without a warning and needs no network. The Python and the commands of its pages, and
of the README, work."""

import doctest
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
import typer
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.support.wait import WebDriverWait

import crodobo.methods
from crodobo.cli.given import parse_extra
from crodobo.cli.help import MethodCommand
from crodobo.cli.main import app
from crodobo.methods import REGISTRY

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("&", "&&", "|", ">", ">>", "2>")  # words that end the arguments of a command
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


def fenced(page: Path, language: str) -> dict[str, str]:
    """The blocks of a page, by title where they have one: those are files, the others are to be run as they are."""
    found = [(title, code) for kind, title, code in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]
    return {title or f"block {number}": code for number, (title, code) in enumerate(found)}


def run(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Resources(HTMLParser):
    """Collects what a browser loads to show a page, other than links to follow."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = "href" if tag == "link" else "src"
        self.addresses += [value for name, value in attrs if name == wanted and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT, NO_MKDOCS_2_WARNING="1")
    return folder


def test_the_search_of_a_site_that_is_opened_as_a_file_finds_pages(
    site: Path, chromium: str, chromedriver: str, tmp_path: Path
) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    options.add_argument("--window-size=1300,900")  # wide enough for the field
    options.add_argument(f"--user-data-dir={tmp_path}")
    driver = webdriver.Chrome(options, Driver(chromedriver))
    try:
        driver.get((site / "index.html").as_uri())
        field = driver.find_element("css selector", "input[name=query]")
        field.click()
        field.send_keys("receipt")
        found = WebDriverWait(driver, 30).until(
            lambda _: driver.find_elements("css selector", ".md-search-result__item a")
        )
        assert any("ledger.html" in str(link.get_attribute("href")) for link in found)
    finally:
        driver.quit()


def test_the_site_builds_strictly_has_every_method_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}

    for name, method in REGISTRY.items():
        page = pages[f"methods/{name}.html"]
        assert f">{name}<a" in page or f">{name}</h1>" in page
        assert f"{method.__module__}.{method.__qualname__}" in page
        assert f'href="{name}.html"' in pages["methods/index.html"]
        assert all(f"<code>{field}</code>" in page for field in method.Settings.model_fields)
        assert all(f"<strong>{start}</strong>" in page for start in ("Keeps.", "Use it", "Reference.")), name
    for name in crodobo.__all__:
        assert f"<code>crodobo.{name}</code>" in pages["api/index.html"]

    for path, page in pages.items():
        resources = Resources()
        resources.feed(page)
        assert resources.addresses
        assert not [address for address in resources.addresses if re.match(r"(https?:)?//", address)], path
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def make_images(folder: Path) -> None:
    """The folders that pages speak of."""
    for place in ("public/cat", "public/dog", "private"):
        (folder / place).mkdir(parents=True)
        for number in range(20):
            Image.new("L", (20, 24), 10 * number).save(folder / place / f"{number}.png")


def untitled_python(page: Path) -> list[str]:
    return [code for title, code in fenced(page, "python").items() if title.startswith("block")]


@pytest.mark.parametrize("page", filter(untitled_python, PAGES), ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = untitled_python(page)
    make_images(tmp_path)
    code = re.sub(r"\[:\d{3,}\]", "[:16]", "\n".join(blocks))  # fewer and smaller queries
    code = re.sub(r"\bsize=\d{2,}", "size=8", code)
    script = tmp_path / "page.py"
    script.write_text(re.sub(r"warmup=\d+", "warmup=1, warmup_batch=8", code), encoding="utf-8")
    if "relaunch" in code:  # it would start this very process again
        run(script, cwd=tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(script))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    blocks = [re.sub(r"\\\n\s*", " ", block) for block in fenced(page, "sh").values()]
    lines = [line for block in blocks for line in block.splitlines()]
    commands = typer.main.get_command(app).commands
    for line in lines:
        match shlex.split(line, comments=True):
            case ["crodobo", name, *arguments] if "--help" not in arguments:
                end = next((number for number, word in enumerate(arguments) if word in SHELL), None)
                context = commands[name].make_context(name, arguments[:end])
                if isinstance(commands[name], MethodCommand):
                    assert set(parse_extra(context.args)) <= crodobo.methods.CroDoBo.Settings.model_fields.keys(), line
            case ["make", *targets]:
                subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)


# Add your own method


@pytest.fixture
def example(tmp_path: Path) -> ModuleType:
    """The one file of `docs/add-a-method.md`, imported."""
    blocks = fenced(ROOT / "docs" / "add-a-method.md", "python")
    (title,) = [title for title in blocks if title != "src/crodobo/methods/__init__.py"]
    path = tmp_path / Path(title).name
    path.write_text(blocks[title], encoding="utf-8")
    return import_file(path)


def test_the_method_to_copy_keeps_the_whole_contract(example: ModuleType, tmp_path: Path) -> None:
    """Its docstring's example runs too."""
    name = example.PseudoLabel.name
    assert name not in REGISTRY
    plugin = (
        "from crodobo.methods import REGISTRY\n"
        f"from {example.__name__} import PseudoLabel\n"
        "REGISTRY[PseudoLabel.name] = PseudoLabel\n"
    )
    (tmp_path / "registered.py").write_text(plugin)
    pytest_options = ["-p", "registered", "-p", "no:cacheprovider", "--rootdir", ROOT, "-c", ROOT / "pyproject.toml"]
    files = [ROOT / "tests" / "contract", example.__file__ or ""]
    chosen = ["-k", f"{name} or {example.__name__}", "-v"]
    done = run("-m", "pytest", *pytest_options, *files, *chosen, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert f"[{name}" in done.stdout
    assert "pseudo_label.PseudoLabel PASSED" in done.stdout


def test_the_method_to_copy_is_in_the_style_of_the_others(example: ModuleType, tmp_path: Path) -> None:
    for check in (["check"], ["format", "--check"]):
        run("-m", "ruff", *check, "--no-cache", "--config", ROOT / "pyproject.toml", example.__file__ or "", cwd=ROOT)


def test_the_line_to_add_names_what_is_there() -> None:
    line = fenced(ROOT / "docs" / "add-a-method.md", "python")["src/crodobo/methods/__init__.py"]
    (group,) = re.findall(r"^([A-Z]+) = ", line, re.MULTILINE)
    assert set(getattr(crodobo.methods, group)) <= set(REGISTRY.values())


@pytest.fixture
def hooks() -> ModuleType:
    return import_file(ROOT / "docs" / "hooks.py")


@pytest.mark.parametrize("name", REGISTRY)
def test_the_example_of_a_methods_page_runs(hooks: ModuleType, name: str) -> None:
    page = hooks.example(name, REGISTRY[name])
    code = re.findall(r"^```pycon\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert code or "show_docstring_examples: true" in page  # the doctests run those
    for block in code:
        test = doctest.DocTestParser().get_doctest(block, {}, name, None, None)
        assert doctest.DocTestRunner().run(test) == doctest.TestResults(failed=0, attempted=len(test.examples))
        assert test.examples


def test_a_method_that_is_registered_gets_its_page_and_its_row(
    example: ModuleType, hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTRY, "pseudo-label", example.PseudoLabel)
    pages = hooks.method_pages()
    assert "[pseudo-label](pseudo-label.md)" in pages["methods/index.md"]
    assert "| `tau` | `0.95` | float, 0 to 1 | Confidence τ from which" in pages["methods/pseudo-label.md"]
