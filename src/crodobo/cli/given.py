"""What the user has set for a command: on the command line, in the environment, in a file."""

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from crodobo.burn.relaunch import relaunch
from crodobo.cli.errors import spellings_of
from crodobo.cli.options import IMAGES, KNOWN, RUN, SETTINGS, Command
from crodobo.cli.resolve import Chosen, choose
from crodobo.config import MethodSettings, SessionSettings, Settings, check_name, nearest
from crodobo.errors import BadSettings

if TYPE_CHECKING:
    from typer import Context

PREFIX = "CRODOBO_"
FILE = f"{PREFIX}CONFIG"  # names the settings file, as --config does
NOT_SETTINGS = (FILE, "CRODOBO_CACHE", "CRODOBO_KEY", "CRODOBO_LAUNCHED")
TYPED, ENVIRONMENT = "command line", "environment"
TABLES = {"options": ("options",), "data": ("data",), "views": ("data", "views")}
SettingsModel = TypeVar("SettingsModel", bound=Settings)
SessionModel = TypeVar("SessionModel", bound=SessionSettings)


@dataclass(frozen=True)
class Given:
    """What the user has set for a command, by the setting's name, and where each value came from."""

    command: Command
    values: dict[str, Any]
    origins: dict[str, str]
    options: list[str]  # all that the command takes, to suggest one for a typo

    @classmethod
    def read(cls, command: Command, typed: dict[str, Any], config: Path | None, context: "Context") -> Self:
        """Read all layers. Settings that only another command has are passed over in the file and the environment."""
        given = cls(command, {}, {}, spellings_of(context.command))
        if file := config or os.environ.get(FILE):
            for name, value in read_file(Path(file)):
                given._take(name, value, f"file {file}", Path(file).expanduser().absolute().parent)
        for name, variable in read_environment():
            given._take(name, os.environ[variable], f"{ENVIRONMENT} {variable}", Path.cwd())
        extra, pairs = parse_extra(context.args), parse_pairs(context.params.get("pairs") or [])
        for name, value in (typed | extra | pairs).items():
            given._take(name, value, TYPED, Path.cwd())
        return given

    def _take(self, name: str, value: Any, origin: str, base: Path) -> None:
        setting = self.command.settings.get(name)
        is_path = setting and setting.is_path and (name, value) != ("log", "-")  # which is standard output
        if is_path and isinstance(value, str):
            value = base / Path(value).expanduser()
        if setting or name not in SETTINGS:
            self.values[name], self.origins[name] = value, origin
        elif origin == TYPED:
            raise BadSettings(f"This command has no option --{name.replace('_', '-')}.")

    def prepare_process(self) -> None:
        """What must happen before torch is loaded: strict burning starts the process again."""
        burn = self.command.settings.get("burn")
        if burn and self.values.get("burn", burn.default) == "strict":
            relaunch()
        # Threads inside an operation that wait by spinning can stall each other on a shared machine.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    def choose(self) -> Chosen:
        """Settle what the preset decides, and refuse names that no method knows."""
        own = [name for name in self.values if name not in self.command.settings]
        if own or self.command.one_method:
            self._check_own(own)
        default = RUN.settings["benchmark"].default
        if self.values.get("benchmark", default) == default and not {"folder", "source", "target"} & self.values.keys():
            for name in [each for each in IMAGES if self.origins.get(each, TYPED) != TYPED]:
                del self.values[name], self.origins[name]  # they wait for images on disk
        with self._blamed():
            return choose(self.values, self.command.sides)

    @property
    def _method(self) -> str:
        return str(self.values.get("method", RUN.settings["method"].default))

    def _check_own(self, own: list[str]) -> None:
        """Settings that are not of all methods must be of this one; those of another may be in a file."""
        from crodobo.methods import REGISTRY

        check_name("method", self._method, REGISTRY)
        theirs = {name: kind.Settings.model_fields for name, kind in REGISTRY.items()}
        mine = theirs[self._method] if self.command.one_method else {}
        for name in own:
            having = [each for each, fields in theirs.items() if name in fields]
            origin = self.origins[name]
            if having and name not in mine and origin == TYPED:
                problem = f"The method {self._method} has no setting {name}."
                raise BadSettings(problem, f"Methods with it: {', '.join(having)}.")
            if having and name not in mine:
                del self.values[name]
            elif not having:
                near = nearest(name, [*mine, *(self.options if origin == TYPED else KNOWN)])
                kind, place = ("option", "") if origin == TYPED else ("setting", f" ({origin})")
                remedy = f"Did you mean {_spelled(near, origin)}?" if near else "`crodobo config` shows all settings."
                raise BadSettings(f"There is no {kind} {_spelled(name, origin)}{place}.", remedy)

    def session(self, chosen: Chosen, model: type[SessionModel]) -> SessionModel:
        """The settings of the command's session; without a method, those that all methods share."""
        from crodobo.methods import get_method

        kind = get_method(self._method).Settings if self.command.one_method else MethodSettings
        with self._blamed():
            options = kind.of(**model.METHOD_DEFAULTS | chosen.options)
            return model.of(benchmark=chosen.benchmark, options=options, **chosen.run)

    def of(self, model: type[SettingsModel]) -> SettingsModel:
        """The settings of a model that lies beside the session's."""
        with self._blamed():
            return model.of(**{name: self.values[name] for name in model.model_fields if name in self.values})

    def for_plan(self) -> Chosen:
        """What all runs of a plan share, with values of their types."""
        chosen = self.choose()
        settings = self.session(chosen, self.command.session)
        return replace(chosen, run={name: getattr(settings, name) for name in chosen.run})

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Add to an error where the value came from, unless it was typed."""
        try:
            yield
        except BadSettings as error:
            origins = {self.origins.get(name, TYPED) for name in error.settings} - {TYPED}
            if not origins:
                raise
            remedy = f"{error.remedy} It comes from the {' and the '.join(sorted(origins))}.".strip()
            raise BadSettings(error.problem, remedy, settings=error.settings) from None


def _spelled(name: str, origin: str) -> str:
    """The name of a setting as it is written where it came from."""
    if origin == TYPED:
        return f"--{name.lstrip('-').replace('_', '-')}"
    return f"{PREFIX}{name.upper()}" if origin.startswith(ENVIRONMENT) else name


def read_file(path: Path) -> Iterator[tuple[str, Any]]:
    """The settings in a TOML file, by name: in tables as the models are nested, or flat with the options' names."""
    try:
        table = tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadSettings(f"The settings file {path} cannot be read ({reason}).", settings=("config",)) from None
    yield from _read_table(table, ())


def _read_table(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    nested = {each.field_name: each.name for each in SETTINGS.values() if path and each.path == path}
    for key, value in table.items():
        name = key.replace("-", "_")
        if isinstance(value, dict) and name in TABLES:
            yield from _read_table(value, TABLES[name])
        else:
            yield nested.get(name) or _name(name), value


def read_environment() -> Iterator[tuple[str, str]]:
    """The settings in the environment: each name, and the variable that sets it."""
    for variable, value in os.environ.items():
        if variable.startswith(PREFIX) and variable not in NOT_SETTINGS and value:
            yield _name(variable.removeprefix(PREFIX).lower()), variable


def parse_extra(words: list[str]) -> dict[str, Any]:
    """Options that only the method knows.

    >>> parse_extra(["--gamma", "-1", "--no-entropy-weights", "--views=4"])
    {'gamma': '-1', 'entropy_weights': False, 'views': '4'}
    """
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            kind = "option" if word.startswith("-") else "argument"
            raise BadSettings(f"There is no {kind} {word} here.")
        option, equals, value = word.removeprefix("--").partition("=")
        name = option.replace("-", "_")
        if equals:
            found[name] = value
        elif rest and not rest[0].startswith("--"):
            found[name] = rest.pop(0)
        else:
            found[name.removeprefix("no_")] = not name.startswith("no_")
    return found


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """Settings as `--set` takes them.

    >>> parse_pairs(["gamma=2", "weight=0.5"])
    {'gamma': '2', 'weight': '0.5'}
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadSettings(f"--set {pair} has no value.", "Write --set NAME=VALUE.")
        found[_name(name)] = value
    return found


def _name(key: str) -> str:
    """The name of the setting that is called so in the environment or in a file."""
    return KNOWN[key].name if key in KNOWN else key
