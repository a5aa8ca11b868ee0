"""Settings: validated models, nested as they are stored. Every result stores the settings that made it.

The command line, the environment and settings files read the same models: a field's description is the help text of
its option, and its type, bounds and default are checked and shown from here.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError

from crodobo.errors import BadSettings


@dataclass(frozen=True)
class Option:
    """How the command line spells a setting that is not simply called by its name.

    `names` are separated by spaces; a slash sets the negative form of a switch apart: `"--grey/--colour"`. A setting
    with `by_method` has another default in some methods.
    """

    names: str = ""
    metavar: str = ""
    by_method: bool = False


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like a mistyped one, or nothing.

    >>> nearest("lerners", ["learners", "lr"]), nearest("colour", ["learners", "lr"])
    ('learners', '')
    """
    bare = {each.lstrip("-"): each for each in known}  # dashes would make all options alike
    return next((bare[near] for near in difflib.get_close_matches(name.lstrip("-"), bare, n=1)), "")


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
        crodobo.errors.BadSettings: lr cannot be -1: input should be greater than 0.
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
                raise BadSettings(f"There is no setting {name}.", cls._suggest(name)) from None
            if first["type"] == "missing":
                raise BadSettings(f"The setting {name} is missing.", "Give it a value.", settings=(name,)) from None
            message = first["msg"].removeprefix("Value error, ").rstrip(".")
            message = message[0].lower() + message[1:]
            setting = str(first["loc"][0])
            raise BadSettings(f"{name} cannot be {first['input']}: {message}.", settings=(setting,)) from None

    @classmethod
    def _suggest(cls, name: str) -> str:
        near = nearest(name, cls.model_fields)
        return f"Did you mean {near}?" if near else f"The settings are {', '.join(cls.model_fields)}."


class LearnerSettings(Settings):
    """A learner: its network and how it learns."""

    TITLE = "Learners"

    backbone: Annotated[str, Field(description="Network: small, a timm name, or torchvision/NAME.")] = "small"
    pretrained: Annotated[
        bool,
        Option("--pretrained/--random"),
        Field(description="Download the library's pretrained weights, or start from random ones."),
    ] = False
    weights: Annotated[
        Path | None, Option(metavar="FILE"), Field(description="Initial backbone weights (.safetensors, .pth).")
    ] = None
    lr: Annotated[AboveZero, Field(description="Learning rate of new layers.")] = 8e-4
    backbone_lr_scale: Annotated[
        NonNegative | None,
        Field(description="Factor on the learning rate for the backbone; if not set, 0.01 pretrained and 1 random."),
    ] = None
    weight_decay: Annotated[NonNegative, Field(description="Weight decay.")] = 5e-4
    norm: Annotated[Norm, Option(by_method=True), Field(description="BatchNorm statistics at prediction.")] = "mixed"
    running_weight: Annotated[Fraction, Field(description="Weight of the running statistics in `mixed`.")] = 0.8
    warmup: Annotated[int, Field(ge=0, description="Training steps on the source before the stream.")] = 300
    warmup_batch: Annotated[int, Field(ge=2, description="Source images in a warm-up step.")] = 64


class MethodSettings(LearnerSettings):
    """What every method has; a method with settings of its own adds them in a subclass."""

    TITLE = "Method"

    learners: Annotated[Positive, Option(by_method=True), Field(description="Number of learners K.")] = 1
    seed: Annotated[Seed, Field(description="Seed of everything random.")] = 0
    order: Annotated[Order, Field(description="Whether a query is learned before or after it is predicted.")] = (
        "adapt-then-predict"
    )
    burn: Annotated[
        Burn,
        Field(
            description="strict: the process overwrites all memory that it frees, and proves it first. standard: what "
            "queries own is overwritten. off: nothing is overwritten, and methods may keep target data."
        ),
    ] = "standard"
    guard: Annotated[
        bool,
        Field(description="Do not learn from bursts of few classes, and restore good weights after a collapse."),
    ] = True
    parallel: Annotated[
        bool, Option("--parallel/--sequence"), Field(description="Run the learners in threads, or one after the other.")
    ] = True
    threads: Annotated[
        Positive | None,
        Field(description="Threads inside an operation; if not set, the cores divided by the learners."),
    ] = None


class Classes(Settings):
    """How the classes of source and target are called in common.

    `source` and `target` give a class its common name, several of them the same one to merge them, or false to drop
    it. A class that is not named keeps its name, unless `"*"` says otherwise. `names` puts the classes in an order.
    """

    names: Annotated[tuple[str, ...], Field(min_length=2, description="The common names, in order.")] | None = None
    source: Annotated[Renaming, Field(description="Common names of the source's classes.")] = {}
    target: Annotated[Renaming, Field(description="Common names of the target's classes.")] = {}


class Views(Settings):
    """How views of the images are made; see `Augment`."""

    TITLE = "Views of images"

    margin: Annotated[
        Annotated[int, Field(ge=0)] | None,
        Option("--view-margin", "PIXELS"),
        Field(description="Largest shift of a view; if not set, a fourteenth of the image's side."),
    ] = None
    resize: Annotated[
        bool, Option("--view-resize/--no-view-resize"), Field(description="Let views be random crops, resized.")
    ] = True
    flip: Annotated[bool, Field(description="Let views be mirrored.")] = True
    operations: Annotated[
        int, Option("--view-operations"), Field(ge=0, description="Random operations in a strong view.")
    ] = 2
    strength: Annotated[Fraction, Option("--view-strength"), Field(description="Strength of these operations.")] = 0.3


class DataSettings(Settings):
    """Which images on disk a session uses, and how they are brought to one shape.

    `folder` is a preset's; `source` and `target` name the two domains one by one.
    """

    TITLE = "Images"

    folder: Annotated[Path | None, Option("--data"), Field(description="Folder with the data of a preset.")] = None
    source: Annotated[
        Path | None,
        Field(description="Labelled public images: a folder of class folders, a list, a table, or IDX files."),
    ] = None
    target: Annotated[
        Path | None, Field(description="Images to adapt to, with labels for scoring; the same forms as the source.")
    ] = None
    classes: Annotated[
        Classes | None,
        Option("--classes", "FILE"),
        Field(description="TOML file that renames, merges and drops classes of the source and the target."),
    ] = None
    source_columns: Annotated[
        Columns | None,
        Option("--columns", "IMAGE,LABEL"),
        Field(description="Columns of a CSV or Parquet table, for the source and the target."),
    ] = None
    target_columns: Annotated[
        Columns | None,
        Option(metavar="IMAGE,LABEL"),
        Field(description="Columns of the target, if they differ from the source's."),
    ] = None
    source_limit: Annotated[Positive | None, Field(description="Use this many source images; all if not set.")] = None
    fit: Annotated[Fit, Field(description="How images are made square.")] = "squash"
    grey: Annotated[
        bool, Option("--grey/--colour"), Field(description="Read images with one channel, or with three.")
    ] = False
    views: Annotated[Views | None, Field(description="How views are made; if not set, the preset's.")] = None
    skip_broken: Annotated[bool, Field(description="Leave out images that cannot be decoded.")] = False


class SessionSettings(Settings):
    """What every stream has in common: its public data, its method, and how often it is saved and proved."""

    TITLE = "Session"

    benchmark: Annotated[
        str,
        Option("--benchmark --preset", "NAME"),
        Field(description="What to adapt from and to: glyphs, or a preset that `crodobo data` lists."),
    ] = "glyphs"
    method: Annotated[str, Option(metavar="NAME"), Field(description="Any of `crodobo methods`.")] = "crodobo"
    data: Annotated[DataSettings | None, Field(description="Images on disk.")] = None
    image_size: Annotated[
        ImageSize | None,
        Field(
            description="Width and height of images in pixels; if not set, the benchmark's; for your own images 64, or "
            "224 with another backbone than small."
        ),
    ] = None
    cache_size: Annotated[
        NonNegative, Option(metavar="GB"), Field(description="Disk space for decoded source images.")
    ] = 50.0
    query_size: Annotated[Positive, Field(description="Images in a query.")] = 64
    checkpoint_every: Annotated[
        Positive, Option(metavar="QUERIES"), Field(description="Queries between checkpoints.")
    ] = 10
    prove_every: Annotated[
        Positive | None,
        Option(metavar="QUERIES"),
        Field(description="Queries between searches of the memory for a test query; only at the start if not set."),
    ] = None
    log: Annotated[
        Path | None,
        Option(metavar="FILE"),
        Field(exclude=True, description="Append events to this file as JSON lines: numbers only, no data."),
    ] = None
    sign_key: Annotated[
        Path | None,
        Option(metavar="FILE"),
        Field(exclude=True, description="Sign the ledger with this Ed25519 key (PEM or 32 raw bytes)."),
    ] = None
    options: Annotated[SerializeAsAny[MethodSettings], Field(description="Settings of the method.")]

    METHOD_DEFAULTS: ClassVar[dict[str, Any]] = {}  # where a command differs from the method's defaults
    IDENTIFYING: ClassVar[tuple[str, ...]] = ("benchmark", "method", "image_size", "data")
    FREE_OPTIONS: ClassVar[tuple[str, ...]] = ("parallel", "threads", "burn", "order")

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide what the learners are. A checkpoint made with others cannot be continued."""
        return self.identity_of(self.model_dump(mode="json"))

    @classmethod
    def identity_of(cls, stored: dict[str, Any]) -> dict[str, Any]:
        """The identity of settings that were stored as JSON."""
        options = {name: value for name, value in stored["options"].items() if name not in cls.FREE_OPTIONS}
        return {name: stored[name] for name in cls.IDENTIFYING} | {"options": options}
