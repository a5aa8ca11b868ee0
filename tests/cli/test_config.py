"""Settings from the command line, the environment, a file, a preset and defaults, and `crodobo config`."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crodobo.cli.options import ADAPT, COMMANDS, COMPARE, KNOWN, RUN, SERVE

Crodobo = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shown(crodobo: Crodobo) -> Callable[..., dict[str, tuple[str, str]]]:
    """The value of each setting and where it came from."""

    def call(*arguments: str | Path) -> dict[str, tuple[str, str]]:
        status, out, errors = crodobo("config", *arguments)
        assert (status, errors) == (0, "")
        rows = [re.split(r"  +", line.strip()) for line in out.splitlines()[1:]]
        return {row[0]: (row[1], row[2]) for row in rows}

    return call


Shown = Callable[..., dict[str, tuple[str, str]]]


def test_the_command_line_wins_over_environment_file_preset_and_default(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = ("run", "--preset", "pacs/cartoon-photo", "--data", "PACS")
    assert shown("run")["query_size"] == ("64", "default")
    assert shown(*preset)["image_size"] == ("224", "preset pacs/cartoon-photo")
    (tmp_path / "s.toml").write_text("image_size = 32\nquery-size = 16\n[options]\nlr = 0.5\ntau = 0.7\n")
    filed = (*preset, "--config", "s.toml")
    assert shown(*filed)["image_size"] == ("32", "file s.toml")
    monkeypatch.setenv("CRODOBO_IMAGE_SIZE", "40")
    monkeypatch.setenv("CRODOBO_TAU", "0.8")
    found = shown(*filed)
    assert found["image_size"] == ("40", "environment CRODOBO_IMAGE_SIZE")
    assert found["tau"] == ("0.8", "environment CRODOBO_TAU")
    assert (found["lr"], found["query_size"]) == (("0.5", "file s.toml"), ("16", "file s.toml"))
    found = shown(*filed, "--image-size", "48", "--tau", "0.9")
    assert (found["image_size"], found["tau"]) == (("48", "command line"), ("0.9", "command line"))


def test_config_without_a_command_shows_the_settings_of_run(shown: Shown) -> None:
    assert shown("--learners", "3")["learners"] == ("3", "command line")
    assert shown() == shown("run")
    assert set(shown()) >= {"queries", "method", "lr", "tau", "objective"}


def test_values_that_plain_implies_say_so(shown: Shown) -> None:
    found = shown("run", "--plain", "--steps", "2")
    assert found["steps"] == ("2", "command line")
    assert found["source_views"] == ("plain", "plain")
    assert found["lr"][1] == "default"


def test_private_streams_burn_strictly_by_default(shown: Shown) -> None:
    assert shown("run")["burn"] == ("standard", "default")
    assert shown("serve")["burn"] == ("strict", "default")
    assert shown("adapt", "--inbox", "i", "--predictions", "p.csv", "--source", "s")["burn"] == ("strict", "default")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--lr", "0.1", "--tau", "0.5", "--stream", "dirichlet(0.1)", "--no-guard", "--log", "log.jsonl"),
        ("run", "--method", "eata", "--margin", "0.3", "--source", "a", "--target", "b", "--columns", "x,y", "--grey"),
        ("run", "--preset", "pacs/cartoon-photo", "--data", "P", "--view-margin", "3", "--random"),
        ("run", "--source", "a", "--target", "b", "--classes", "classes.toml"),
        ("adapt", "--source", "a", "--inbox", "i", "--predictions", "p.csv", "--watch"),
        ("serve", "--source", "a", "--keys", "keys.json", "--port", "0", "--rate", "2"),
        ("compare", "--methods", "ent,crodobo", "--seeds", "4,5", "--warmup", "7"),
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_a_printed_file_gives_the_same_settings(
    arguments: tuple[str, ...], crodobo: Crodobo, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("classes.toml").write_text('names = ["pet", "bird é"]\n[source]\n"a \\"cat\\"" = "pet"\n"*" = false\n')
    status, text, _ = crodobo("config", *arguments, "--toml")
    assert status == 0
    Path("s.toml").write_text(text)
    assert crodobo("config", arguments[0], "--config", "s.toml", "--toml") == (0, text, "")
    typed, filed = shown(*arguments), shown(arguments[0], "--config", "s.toml")
    assert {name: value for name, (value, _) in filed.items()} == {name: value for name, (value, _) in typed.items()}
    assert {origin for value, origin in filed.values() if value != "–"} == {"file s.toml"}
    monkeypatch.chdir("/")
    assert crodobo("config", arguments[0], "--config", tmp_path / "s.toml", "--toml") == (0, text, "")


def test_paths_in_a_file_are_relative_to_the_file(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "s.toml").write_text('target = "/b"\nsign-key = "key"\n[data]\nsource = "a"\n')
    found = shown("run", "--config", "there/s.toml", "--log", "log")
    assert found["source"][0] == str(tmp_path / "there" / "a")
    assert found["sign_key"][0] == str(tmp_path / "there" / "key")
    assert (found["target"][0], found["log"][0]) == ("/b", str(tmp_path / "log"))


def test_the_environment_can_name_the_file(shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.toml").write_text("lr = 0.5\n")
    monkeypatch.setenv("CRODOBO_CONFIG", str(tmp_path / "s.toml"))
    assert shown()["lr"] == ("0.5", f"file {tmp_path}/s.toml")


def test_settings_of_other_commands_and_methods_are_ignored(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text('inbox = "i"\nport = 80\ngamma = 3\nseeds = "0,1"\n')
    monkeypatch.setenv("CRODOBO_MAX_WAIT", "3")
    monkeypatch.setenv("CRODOBO_TAU", "0.5")
    monkeypatch.setenv("CRODOBO_LR", "")
    found = shown("run", "--method", "source-only", "--config", "s.toml")
    assert not {"inbox", "port", "gamma", "seeds", "max_wait", "tau"} & found.keys()
    assert found["lr"][1] == "default"
    assert shown("compare", "--config", "s.toml")["seeds"] == ("0,1", "file s.toml")


@pytest.mark.parametrize("command", ["run", "compare", "serve"])
def test_unknown_names_are_refused_with_the_nearest(
    command: str, crodobo: Crodobo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text("[options]\nwarm_up = 3\n")
    status, _, errors = crodobo("config", command, "--config", "s.toml")
    assert (status, errors) == (2, "error: There is no setting warm_up (file s.toml). Did you mean warmup?\n")
    monkeypatch.setenv("CRODOBO_QUERYSIZE", "secret")
    status, _, errors = crodobo("config", command)
    assert (status, errors) == (
        2,
        "error: There is no setting CRODOBO_QUERYSIZE (environment CRODOBO_QUERYSIZE). "
        "Did you mean CRODOBO_QUERY_SIZE?\n",
    )


def test_a_bad_value_names_the_place_it_came_from(
    crodobo: Crodobo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRODOBO_LR", "fast")
    status, _, errors = crodobo("config")
    assert status == 2
    assert errors.startswith("error: lr cannot be fast: ")
    assert errors.endswith("It comes from the environment CRODOBO_LR. (see --lr)\n")
    monkeypatch.delenv("CRODOBO_LR")
    (tmp_path / "s.toml").write_text("[data]\nfit = 3\nsource = 'a'\ntarget = 'b'\n")
    assert "It comes from the file s.toml. (see --fit)" in crodobo("config", "--config", "s.toml")[2]


@pytest.mark.parametrize("text", ["lr = ", None])
def test_a_file_that_cannot_be_read_is_named(text: str | None, crodobo: Crodobo, tmp_path: Path) -> None:
    if text:
        (tmp_path / "s.toml").write_text(text)
    status, _, errors = crodobo("config", "--config", "s.toml")
    assert status == 2
    assert errors.startswith("error: The settings file s.toml cannot be read (")
    assert errors.count("\n") == 1


def test_variables_that_are_not_settings_are_ignored(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CRODOBO_KEY", "CRODOBO_CACHE", "CRODOBO_LAUNCHED"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in str(shown("serve"))


def test_data_values_from_elsewhere_do_not_stand_for_own_images(
    shown: Shown, crodobo: Crodobo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRODOBO_GREY", "true")
    (tmp_path / "s.toml").write_text("[data]\nfit = 'crop'\n[views]\nmargin = 3\n")
    for more in ((), ("--benchmark", "glyphs")):
        found = shown("run", "--config", "s.toml", *more)
        assert {found[name] for name in ("grey", "fit", "margin")} == {("–", "default")}
    assert shown("run", "--source", "a", "--target", "b")["grey"] == ("yes", "environment CRODOBO_GREY")
    status, _, errors = crodobo("config", "run", "--view-margin", "3")
    assert status == 2
    assert errors.endswith("need a source and a target. (see --view-margin, --source, --target)\n")


def test_config_shows_every_setting_and_what_is_required(shown: Shown, crodobo: Crodobo) -> None:
    for name, command in COMMANDS.items():
        assert len(shown(name)) >= len({each.field_name for each in command.settings.values()})
    found = shown("adapt")
    assert {found[name] for name in ("inbox", "predictions")} == {("–", "(required)")}
    assert {found[name] for name in ("source", "benchmark")} == {("–", "(source or preset required)")}
    assert {found[name] for name in ("state", "quarantine")} == {("–", "default")}
    assert "inbox" not in crodobo("config", "adapt", "--toml")[1]


def test_a_missing_setting_names_its_option(crodobo: Crodobo) -> None:
    status, _, errors = crodobo("adapt", "--source", "s", "--burn", "standard")
    assert (status, errors) == (2, "error: The setting inbox is missing. Give it a value. (see --inbox)\n")


def test_the_same_setting_has_the_same_option_everywhere() -> None:
    for name, setting in RUN.settings.items():
        for command in (ADAPT, SERVE, COMPARE):
            if other := command.settings.get(name):
                assert (other.spellings, other.field.description) == (setting.spellings, setting.field.description)
    keys = [key for command in COMMANDS.values() for each in command.settings.values() for key in each.keys]
    assert set(keys) == set(KNOWN)
    for key in KNOWN:
        assert len({each.name for c in COMMANDS.values() for each in c.settings.values() if key in each.keys}) == 1


def test_special_spellings() -> None:
    spellings = {name: " ".join(each.spellings) for name, each in RUN.settings.items()}
    assert spellings["benchmark"] == "--benchmark --preset"
    assert (spellings["grey"], spellings["pretrained"]) == ("--grey/--colour", "--pretrained/--random")
    assert (spellings["parallel"], spellings["guard"]) == ("--parallel/--sequence", "--guard/--no-guard")
    assert (spellings["flip"], spellings["folder"]) == ("--flip/--no-flip", "--data")
    assert (spellings["source_columns"], spellings["classes"]) == ("--columns", "--classes")
    assert ADAPT.settings["shuffle"].spellings == ["--shuffle/--oldest-first"]


@pytest.mark.parametrize("command", ["run", "adapt", "serve", "compare", "study"])
def test_help_comes_from_the_models_without_torch(command: str) -> None:
    code = (
        "import sys; sys.argv = ['crodobo', *sys.argv[1:]]\nfrom crodobo.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code, command, "--help"], capture_output=True, text=True, check=True)
    text = " ".join(shown.stdout.split())
    assert "--query-size INTEGER Images in a query. [default: 64]" in text
    assert "--fresh" in text
    assert "--resume" not in text
    strict = command in ("adapt", "serve")
    assert ("[default: strict]" in text) == strict
    assert ("[default: glyphs]" in text) == (command != "adapt"), "adapt needs a source or a preset"
    assert "--no-skip-broken" not in text
    assert "--flip / --no-flip Let views be mirrored. [default: yes]" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu"], "error: No such command 'rnu'. Did you mean 'run'?\n"),
        (["config", "sreve"], "error: No such command 'sreve'. Did you mean 'serve'?\n"),
        (
            ["bench", "--case", "glyphs"],
            "error: The benchmarks are scripts of the repository. Run `make bench` there.\n",
        ),
        (["compare", "--fersh"], "error: There is no option --fersh. Did you mean --fresh?\n"),
        (
            ["send", "x", "--predictions", "p", "--bacth", "3"],
            "error: There is no option --bacth. Did you mean --batch?\n",
        ),
        (
            ["compare", "--nonsense"],
            "error: There is no option --nonsense. `crodobo compare --help` lists the options.\n",
        ),
        (["methods", "crodobbo"], "error: There is no method 'crodobbo'. Did you mean crodobo?\n"),
        (
            ["compare", "--methods", "crodobbo"],
            "error: There is no method 'crodobbo'. Did you mean crodobo? (see --methods)\n",
        ),
        (
            ["run", "--benchmark", ""],
            "error: benchmark cannot be empty: string should have at least 1 character. (see --benchmark)\n",
        ),
        (["config", "--preset=glyps"], "error: There is no benchmark 'glyps'. Did you mean glyphs? (see --preset)\n"),
        (["run", "--seed"], "error: Option '--seed' requires an argument.\n"),
        (["run", "--seed", "one"], "error: seed cannot be one: it must be a valid integer. (see --seed)\n"),
        (["run", "--image-size", "4"], "error: image_size cannot be 4: it must be at least 8. (see --image-size)\n"),
    ],
)
def test_a_typo_gives_one_sentence(arguments: list[str], sentence: str, crodobo: Crodobo) -> None:
    assert crodobo(*arguments) == (2, "", sentence)


def test_the_settings_of_one_method_are_listed(crodobo: Crodobo) -> None:
    status, out, _ = crodobo("methods", "crodobo")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("--")] == [
        *("--learners", "--tau", "--lam", "--objective")
    ]
    assert "--tau 0.95 Confidence τ from which a peer's pseudo-label is learned." in " ".join(out.split())
