"""Settings: validated models, nested as they are stored. Every result stores the settings that made it.

The command line, the environment and settings files read the same models: a field's description is the help text of
its option, and its type, bounds and default are checked and shown from here.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticUndefined

from crodobo.errors import BadSettings

UNSET: Any = PydanticUndefined  # a setting without a default
WORDS = {"Input should be": "it must be", "greater than or equal to": "at least", "less than or equal to": "at most"}


def setting(default: Any, about: str, names: str = "", metavar: str = "", by_method: bool = False, **more: Any) -> Any:
    """A field of a settings model: its default, what it is about, and how the command line spells it.

    `names` are for an option that is not simply called by the field's name. They are separated by spaces; a slash sets
    the negative form of a switch apart: `"--grey/--colour"`. With `by_method` some methods have another default.
    """
    spelling: dict[str, Any] = {"names": names, "metavar": metavar, "by_method": by_method}
    return Field(default, description=about, json_schema_extra=spelling, **more)


def nearest(name: str, known: Iterable[str], most: int = 1) -> str:
    """The known name that is most like a mistyped one, or nothing. `most` names are joined with "or".

    >>> nearest("lerners", ["learners", "lr"]), nearest("colour", ["learners", "lr"])
    ('learners', '')
    """
    bare = {each.lstrip("-"): each for each in known}  # dashes would make all options alike
    return " or ".join(bare[near] for near in difflib.get_close_matches(name.lstrip("-"), bare, n=most))


def check_name(kind: str, name: str, known: Iterable[str], setting: str = "") -> None:
    """Refuse a name that is not known, and suggest the nearest. `setting` is where it is given, if not in `kind`."""
    if name not in (names := list(known)):
        near = nearest(name, names)
        remedy = f"Did you mean {near}?" if near else f"Choose one of {', '.join(names)}."
        raise BadSettings(f"There is no {kind} {name!r}.", remedy, settings=(setting or kind,))


def two_columns(given: object) -> object:
    """Two columns, also as text with a comma between them."""
    if not isinstance(given, str):
        return given
    parts = tuple(part.strip() for part in given.split(","))
    if len(parts) != 2 or not all(parts):
        raise ValueError("write the image column and the label column, for example file,label")
    return parts


Norm = Literal["mixed", "running", "query"]
Order = Literal["adapt-then-predict", "predict-then-adapt"]
Burn = Literal["strict", "standard", "off"]
Fit = Literal["squash", "crop", "pad"]
Columns = Annotated[tuple[str, str], BeforeValidator(two_columns)]
Renaming = dict[str, str | Literal[False]]
Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ImageSize = Annotated[int, Field(ge=8, le=1024)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """Settings are data: checked when they are made, and never changed after."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    TITLE: ClassVar[str] = ""  # of the group of options in the help

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Make settings. The first mistake is raised as `BadSettings`.

        >>> LearnerSettings.of(lr=-1)
        Traceback (most recent call last):
        ...
        crodobo.errors.BadSettings: lr cannot be -1: it must be greater than 0.
        >>> LearnerSettings.of(warmpu=3)
        Traceback (most recent call last):
        ...
        crodobo.errors.BadSettings: There is no setting warmpu. Did you mean warmup?
        """
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(part for part in first["loc"] if isinstance(part, str))
            if first["type"] == "extra_forbidden":
                near = nearest(name, cls.model_fields)
                remedy = f"Did you mean {near}?" if near else f"The settings are {', '.join(cls.model_fields)}."
                raise BadSettings(f"There is no setting {name}.", remedy) from None
            if first["type"] == "missing":
                raise BadSettings(f"The setting {name} is missing.", "Give it a value.", settings=(name,)) from None
            reason = first["msg"].removeprefix("Value error, ").partition(", unable to parse")[0].rstrip(".")
            for pydantic, ours in WORDS.items():
                reason = reason.replace(pydantic, ours)
            value = "empty" if first["input"] == "" else first["input"]
            problem = f"{name} cannot be {value}: {reason[0].lower()}{reason[1:]}."
            raise BadSettings(problem, settings=(str(first["loc"][0]),)) from None


BUILT_IN = ("small", "small-groupnorm")  # backbones that need no other package
# Parts of source views, in the order in which they are applied: what moves the object, what paints it, what is behind
# it, the style.
SOURCE_VIEWS = ("strong", "zoom", "colours", "background", "style")
AS_PUBLISHED = {"steps": 1, "source_views": "plain", "predict_views": 1}  # what `plain` means beside the protection


def source_view_names(text: str) -> tuple[str, ...]:
    """The names in the setting of the source views, in the order of `SOURCE_VIEWS`.

    >>> source_view_names("colours + zoom"), source_view_names("auto")
    (('zoom', 'colours'), ('auto',))
    """
    names = [name.strip() for name in text.split("+")]
    if len(names) == 1 and names[0] in ("auto", "plain", "mixed"):
        return tuple(names)
    if alone := [name for name in names if name in ("auto", "plain", "mixed")]:
        raise ValueError(f"{alone[0]} cannot be joined with others")
    for name in names:
        if name not in SOURCE_VIEWS:
            near = nearest(name, ("auto", "plain", "mixed", *SOURCE_VIEWS))
            known = f"use auto, plain or mixed, or join {', '.join(SOURCE_VIEWS)} with +"
            raise ValueError(f"there is no source view {name!r}; {f'the nearest is {near}' if near else known}")
    return tuple(part for part in SOURCE_VIEWS if part in names)


class LearnerSettings(Settings):
    """A learner: its network and how it learns."""

    TITLE = "Learners"

    backbone: str = setting("small", "Network: small, small-groupnorm, a timm name, or torchvision/NAME.")
    pretrained: bool = setting(False, "Start from the library's pretrained weights.", "--pretrained/--random")
    weights: Path | None = setting(None, "Initial backbone weights (.safetensors, .pth).", metavar="FILE")
    lr: AboveZero = setting(8e-4, "Learning rate of new layers.")
    backbone_lr_scale: NonNegative | None = setting(
        None, "Factor on the learning rate for the backbone; if not set, 1 for a random and 0.1 for a pretrained one."
    )
    frozen: Fraction = setting(
        0.0, "Share of the backbone's parameters, from its first layer, that do not learn. Saves time."
    )
    weight_decay: NonNegative = setting(5e-4, "Weight decay.")
    norm: Norm = setting("mixed", "BatchNorm statistics at prediction.", by_method=True)
    running_weight: Fraction = setting(0.8, "Weight of the running statistics in `mixed`.")
    warmup: int = setting(300, "Training steps on the source before the stream.", ge=0)
    warmup_batch: int = setting(64, "Source images in a warm-up step.", ge=2)
    source_views: str = setting(
        "auto",
        "How source images are changed before they are learned: plain, mixed, any of strong, zoom, colours, background "
        "and style, joined by +; or auto, chosen by what source and target look like.",
        metavar="VIEWS",
    )
    plain: bool = setting(
        False,
        "Run crodobo exactly as published: no protection from bursts and short queries, one step, plain views.",
    )

    @field_validator("source_views")
    @classmethod
    def _known_views(cls, text: str) -> str:
        return "+".join(source_view_names(text))

    @model_validator(mode="wrap")
    @classmethod
    def _as_published(cls, given: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        settings = check(given)
        if not (settings.plain and isinstance(given, dict)):
            return settings
        usual = {name: value for name, value in AS_PUBLISHED.items() if name in cls.model_fields}
        return check(usual | given)


class MethodSettings(LearnerSettings):
    """What every method has; a method with settings of its own adds them in a subclass."""

    TITLE = "Method"

    learners: Positive = setting(1, "Number of learners K.", by_method=True)
    seed: Seed = setting(0, "Seed of everything random.")
    order: Order = setting("adapt-then-predict", "Whether a query is learned before or after it is predicted.")
    burn: Burn = setting(
        "standard",
        "strict: the process overwrites all memory that it frees, and proves it first. standard: what queries own is "
        "overwritten. off: nothing is overwritten, and methods may keep target data.",
    )
    guard: bool = setting(True, "Predict harmful queries only, and restore earlier weights where learning did harm.")
    steps: Positive = setting(4, "Learning steps per query, each with a new bootstrap and new views.")
    budget: AboveZero | None = setting(
        None,
        "Learn each query for about this long, instead of a number of steps. At least one step is taken.",
        metavar="SECONDS",
    )
    predict_views: Positive = setting(
        2, "Views that a prediction is the mean of: the image; its mirror image, if flips are allowed; crops.", le=6
    )
    parallel: bool = setting(True, "Run the learners in threads, or one after the other.", "--parallel/--sequence")
    threads: Positive | None = setting(None, "Threads inside an operation; if not set, cores divided by learners.")


class Classes(Settings):
    """How the classes of source and target are called in common.

    `source` and `target` give a class its common name, several of them the same one to merge them, or false to drop
    it. A class that is not named keeps its name, unless `"*"` says otherwise. `names` puts the classes in an order.
    """

    names: Annotated[tuple[str, ...], Field(min_length=2)] | None = setting(None, "The common names, in order.")
    source: Renaming = setting({}, "Common names of the source's classes.")
    target: Renaming = setting({}, "Common names of the target's classes.")


class Views(Settings):
    """How views of the images are made; see `Augment`."""

    TITLE = "Views of images"

    margin: Annotated[int, Field(ge=0)] | None = setting(
        None, "Largest shift of a view; if not set, a fourteenth of the image's side.", "--view-margin", "PIXELS"
    )
    resize: bool = setting(True, "Let views be random crops, resized.", "--view-resize/--no-view-resize")
    flip: bool = setting(True, "Let views be mirrored.")
    operations: int = setting(2, "Random operations in a strong view.", "--view-operations", ge=0)
    strength: Fraction = setting(0.3, "Strength of these operations.", "--view-strength")


class DataSettings(Settings):
    """Which images on disk a session uses, and how they are brought to one shape.

    `folder` is a preset's; `source` and `target` name the two domains one by one.
    """

    TITLE = "Images"

    folder: Path | None = setting(None, "Folder with the data of a preset.", "--data")
    source: Path | None = setting(None, "Labelled public images: class folders, a list, a table, or IDX files.")
    target: Path | None = setting(None, "Images to adapt to, with labels for scoring; the same forms as the source.")
    classes: Classes | None = setting(None, "TOML file that renames, merges or drops classes.", "--classes", "FILE")
    source_columns: Columns | None = setting(None, "Columns of a CSV or Parquet table.", "--columns", "IMAGE,LABEL")
    target_columns: Columns | None = setting(None, "Columns of the target, if they differ.", metavar="IMAGE,LABEL")
    source_limit: Positive | None = setting(None, "Use this many source images; all if not set.")
    fit: Fit = setting("squash", "How images are made square.")
    grey: bool = setting(False, "Read images with one channel, or with three.", "--grey/--colour")
    views: Views | None = setting(None, "How views are made; if not set, the preset's.")
    skip_broken: bool = setting(False, "Leave out images that cannot be decoded.")


class SessionSettings(Settings):
    """What every stream has in common: its public data, its method, and how often it is saved and proved."""

    TITLE = "Session"

    benchmark: Name = setting("glyphs", "Where images come from: see `crodobo data`.", "--benchmark --preset", "NAME")
    method: str = setting("crodobo", "Any of `crodobo methods`.", metavar="NAME")
    data: DataSettings | None = setting(None, "Images on disk.")
    image_size: ImageSize | None = setting(
        None,
        "Width and height of images in pixels; if not set, the benchmark's; for your own images 64 with the backbone "
        "small, and 224 with others.",
    )
    cache_size: NonNegative = setting(50.0, "Disk space for decoded source images.", metavar="GB")
    query_size: Positive = setting(64, "Images in a query.")
    checkpoint_every: Positive = setting(10, "Queries between checkpoints.", metavar="QUERIES")
    prove_every: Positive | None = setting(
        None, "Queries between searches of the memory for a test query; only at the start if not set.", "", "QUERIES"
    )
    log: Path | None = setting(
        None, "Add events to this JSON lines file; - is standard output.", metavar="FILE", exclude=True
    )
    sign_key: Path | None = setting(None, "Sign the ledger with this Ed25519 key.", metavar="FILE", exclude=True)
    options: Annotated[SerializeAsAny[MethodSettings], Field(description="Settings of the method.")]

    METHOD_DEFAULTS: ClassVar[dict[str, Any]] = {}  # where a command differs from the method's defaults
    IDENTIFYING: ClassVar[tuple[str, ...]] = ("benchmark", "method", "image_size", "data")
    FREE_OPTIONS: ClassVar[tuple[str, ...]] = ("parallel", "threads", "burn", "order")
    FOLDER: ClassVar[tuple[str, ...]] = ("state",)  # the settings that name the session's folder
    PRIVATE: ClassVar[bool] = True  # only the owner may read that folder

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide what the learners are. A checkpoint made with others cannot be continued."""
        return self.identity_of(self.model_dump(mode="json"))

    @classmethod
    def identity_of(cls, stored: dict[str, Any]) -> dict[str, Any]:
        """The identity of settings that were stored as JSON."""
        options = {name: value for name, value in stored["options"].items() if name not in cls.FREE_OPTIONS}
        return {name: stored[name] for name in cls.IDENTIFYING} | {"options": options}
