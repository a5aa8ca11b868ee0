"""Options of commands, made from the fields of settings models.

A field gives its option the name, the type, the choices, the bounds, the default and the help text. A command says
with a `Command` which models it takes, and gets what was set as a `Given`.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from crodobo.config import SessionSettings, Settings
from crodobo.evaluate.settings import ComparisonSettings, RunSettings
from crodobo.inbox.settings import AdaptSettings
from crodobo.serve.settings import AddressSettings, ServeSettings

Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of going on with what is there.")]
KeepLearners = Annotated[
    bool,
    typer.Option(
        "--keep-learners", help="Go on with the learners although the public images have changed; same classes only."
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Result folder; in runs/, named after the settings, if not set.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")]
TYPES = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def command_group(**more: Any) -> typer.Typer:
    """A command with commands of its own, in the style of all others."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, **more)


@dataclass(frozen=True)
class Setting:
    """A field of a settings model, seen as an option. `path` is where it is nested: `("data", "views")`."""

    field_name: str
    path: tuple[str, ...]
    field: FieldInfo
    default: Any
    group: str

    @property
    def name(self) -> str:
        """Its name among all settings: the field's, or the option's for a field that is nested deeply."""
        return self.keys[0] if len(self.path) > 1 else self.field_name

    @cached_property
    def unpacked(self) -> tuple[Any, list[Any]]:
        """The type without `None` and `Annotated`, and all that was in `Annotated`."""
        kind, constraints = self.field.annotation, list(self.field.metadata)
        while True:
            if get_origin(kind) is Annotated:
                kind, *more = get_args(kind)
                constraints += [each for part in more for each in getattr(part, "metadata", [part])]
            elif NoneType in get_args(kind):
                kind = next(each for each in get_args(kind) if each is not NoneType)
            else:
                return kind, constraints

    @property
    def spelling(self) -> dict[str, Any]:
        """What `crodobo.config.setting` was told of the option."""
        extra = self.field.json_schema_extra
        return extra if isinstance(extra, dict) else {}

    @property
    def spellings(self) -> list[str]:
        """As typer takes them: `["--benchmark", "--preset"]`, `["--grey/--colour"]`."""
        plain = f"--{self.field_name}".replace("_", "-")
        switch = f"{plain}/--no-{plain[2:]}" if self.unpacked[0] is bool else plain
        return (self.spelling.get("names") or switch).split()

    @property
    def keys(self) -> list[str]:
        """Its names in the environment, and in a settings file without tables."""
        return [name.partition("/")[0][2:].replace("-", "_") for name in self.spellings]

    @property
    def is_path(self) -> bool:
        return self.unpacked[0] is Path or self.spelling.get("metavar") == "FILE"

    @property
    def help(self) -> str:
        """The description with the default and the bounds.

        >>> RUN.settings["running_weight"].help
        'Weight of the running statistics in `mixed`.  [default: 0.8; 0 to 1]'
        """
        facts = "; ".join(fact for fact in (self._default and f"default: {self._default}", self._bounds) if fact)
        return f"{self.field.description}  [{facts}]" if facts else f"{self.field.description}"

    @property
    def _default(self) -> str:
        """The default for people. A switch that is off needs none."""
        if self.spelling.get("by_method"):
            return "the method's"
        if isinstance(self.default, bool):
            positive, negative = self.spellings[0].split("/")
            if negative.startswith("--no-"):
                return "yes" if self.default else ""
            return (positive if self.default else negative).lstrip("-")
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return str(self.default) if isinstance(self.default, str | int) else ""

    @property
    def _bounds(self) -> str:
        """The bounds that are not obvious: not that a number of queries is at least one."""
        kind, constraints = self.unpacked
        low, high = ([getattr(each, key) for each in constraints if hasattr(each, key)] for key in ("ge", "le"))
        if kind not in (int, float) or not low:
            return ""
        return f"{low[0]} to {high[0]}" if high else f"at least {low[0]}" if low[0] > 1 else ""

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as a parameter of a command. Values stay text: the model checks them, wherever they come from."""
        kind, _ = self.unpacked
        choices = f"[{'|'.join(get_args(kind))}]" if get_origin(kind) is Literal else ""
        metavar = None if kind is bool else self.spelling.get("metavar") or choices or TYPES.get(kind, "TEXT")
        option = typer.Option(
            *self.spellings, help=self.help, metavar=metavar, rich_help_panel=self.group, show_default=False
        )
        return _parameter(self.name, bool | None if kind is bool else str | None, option)


def settings_of(
    model: type[Settings], path: tuple[str, ...] = (), defaults: dict[str, Any] | None = None
) -> Iterator[Setting]:
    """All settings of a model, those of the models in it too."""
    defaults = defaults or getattr(model, "METHOD_DEFAULTS", {})
    for name, field in model.model_fields.items():
        first = next(base for base in reversed(model.__mro__) if name in getattr(base, "model_fields", ()))
        setting = Setting(name, path, field, defaults.get(name, field.default), getattr(first, "TITLE", ""))
        kind, _ = setting.unpacked
        if inspect.isclass(kind) and issubclass(kind, Settings) and not setting.spelling.get("names"):
            yield from settings_of(kind, (*path, name), defaults)
        else:
            yield setting


@dataclass(frozen=True)
class Command:
    """Which settings a command takes.

    `beside` is a model with further settings, `without` names those that the command does not take, and `no_default`
    those whose default it cannot use.
    """

    session: type[SessionSettings]
    beside: type[Settings] | None = None
    without: tuple[str, ...] = ()
    no_default: tuple[str, ...] = ()

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """By name; what only this command has comes first."""
        beside = settings_of(self.beside, ("beside",)) if self.beside else ()
        shared = sorted(settings_of(self.session), key=lambda setting: setting.group != self.session.TITLE)
        every = {setting.name: setting for setting in (*beside, *shared) if setting.name not in self.without}
        return every | {name: replace(every[name], default=None) for name in self.no_default}

    @property
    def sides(self) -> list[str]:
        """The paths that images of the user's own need."""
        return [side for side in ("source", "target") if side in self.settings]

    @property
    def one_method(self) -> bool:
        """Whether the command runs one method, and so takes the method's own settings."""
        return "method" in self.settings


NO_TARGET = ("target", "target_columns")
PER_RUN = ("method", "learners", "burn", "parallel", "threads", "prove_every", "log", "sign_key")
RUN = Command(RunSettings)
ADAPT = Command(AdaptSettings, without=NO_TARGET, no_default=("benchmark",))
SERVE = Command(ServeSettings, AddressSettings, NO_TARGET)
COMPARE = Command(RunSettings, ComparisonSettings, (*PER_RUN, "seed"))
STUDY = Command(RunSettings, ComparisonSettings, (*COMPARE.without, "methods", "offline", "epochs"))
MEMBERSHIP = Command(RunSettings, without=(*PER_RUN, "order", "guard", "stream_seed"))
COMMANDS = {"run": RUN, "adapt": ADAPT, "serve": SERVE, "compare": COMPARE}
SETTINGS = {name: each for command in COMMANDS.values() for name, each in command.settings.items()}
IMAGES = [name for name, each in SETTINGS.items() if each.path[:1] == ("data",)]  # settings of images on disk
KNOWN = {key: setting for setting in SETTINGS.values() for key in setting.keys}


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def takes(command: Command) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function the options of a command; it gets what was set as its first argument, a `Given`.

    >>> @takes(SERVE)
    ... def serve(given, fresh: bool = False) -> None: ...
    >>> list(inspect.signature(serve).parameters)[:6]
    ['context', 'fresh', 'config', 'pairs', 'host', 'port']
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    file = typer.Option("--config", metavar="FILE", help="TOML file with settings; `crodobo config --toml` writes one.")
    pair = typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the method; may be repeated.")
    general = [_parameter("config", Path | None, file)]
    if command.one_method:
        general.append(_parameter("pairs", list[str] | None, pair))
    context = inspect.Parameter("context", keyword, annotation=typer.Context)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [each.replace(kind=keyword) for each in list(inspect.signature(function).parameters.values())[1:]]

        @functools.wraps(function)
        def wrapper(context: typer.Context, config: Path | None, **values: Any) -> None:
            from crodobo.cli.given import Given

            typed = {name: values[name] for name in command.settings if values[name] is not None}
            function(Given.read(command, typed, config, context), **{each.name: values[each.name] for each in own})

        parameters = [context, *own, *general, *(each.parameter for each in command.settings.values())]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate
