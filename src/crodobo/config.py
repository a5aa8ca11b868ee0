"""Settings: validated models, one inside the other. Every result stores the settings that made it."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError

from crodobo.errors import BadSettings

Norm = Literal["mixed", "running", "query"]
Order = Literal["adapt-then-predict", "predict-then-adapt"]
Burn = Literal["strict", "standard", "off"]
Fit = Literal["squash", "crop", "pad"]
Renaming = dict[str, str | Literal[False]]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ImageSize = Annotated[int, Field(ge=8, le=1024)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """Settings are data: checked when they are made, and never changed after."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Make settings; what is wrong comes out as one sentence.

        >>> LearnerSettings.of(lr=-1)
        Traceback (most recent call last):
        ...
        crodobo.errors.BadSettings: lr cannot be -1: input should be greater than 0
        """
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                known = ", ".join(cls.model_fields)
                raise BadSettings(f"there is no setting {name} here; the settings are {known}") from None
            message = first["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
            raise BadSettings(f"{name} cannot be {first['input']}: {message}") from None


class LearnerSettings(Settings):
    """What a learner is made of."""

    backbone: str = "small"
    pretrained: bool = False
    weights: Path | None = None
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8e-4
    backbone_lr_scale: NonNegative | None = None  # None: 0.01 for a pretrained backbone, 1 for a random one
    weight_decay: NonNegative = 5e-4
    norm: Norm = "mixed"
    running_weight: Fraction = 0.8
    warmup: Annotated[int, Field(ge=0)] = 300
    warmup_batch: Annotated[int, Field(ge=2)] = 64


class MethodSettings(LearnerSettings):
    """What every method has; a method with settings of its own adds them in a subclass."""

    learners: Positive = 1
    seed: Seed = 0
    order: Order = "adapt-then-predict"
    burn: Burn = "standard"  # off: nothing is overwritten, and methods may keep target data
    guard: bool = True  # against bursts of few classes, and collapse
    parallel: bool = True
    threads: Positive | None = None  # None: the cores, shared among the learners


class Classes(Settings):
    """How the classes of source and target are called in common.

    `source` and `target` give a class its common name, several of them the same one to merge them, or false to drop
    it. A class that is not named keeps its name, unless `"*"` says otherwise. `names` puts the classes in an order.
    """

    names: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    source: Renaming = {}
    target: Renaming = {}


class Views(Settings):
    """How views of the images are made; see `Augment`."""

    margin: Annotated[int, Field(ge=0)] | None = None  # None: a fourteenth of the image's side
    resize: bool = True
    flip: bool = True
    operations: Annotated[int, Field(ge=0)] = 2
    strength: Fraction = 0.3


class DataSettings(Settings):
    """Which images on disk a run is made on, and how they are brought to one shape.

    `folder` is a preset's; `source` and `target` name the two domains one by one.
    """

    folder: Path | None = None
    source: Path | None = None
    target: Path | None = None
    classes: Classes | None = None  # None: the preset's, or as they are called
    source_columns: tuple[str, str] | None = None
    target_columns: tuple[str, str] | None = None
    source_limit: Positive | None = None
    fit: Fit = "squash"
    grey: bool = False
    views: Views | None = None  # None: the preset's, or those for photographs
    skip_broken: bool = False


class SessionSettings(Settings):
    """What every stream has in common: its public data, its method, and how often it is saved and proved."""

    benchmark: str = "glyphs"
    method: str = "crodobo"
    data: DataSettings | None = None
    image_size: ImageSize | None = None
    cache_size: NonNegative = 50.0  # gigabytes
    query_size: Positive = 64
    checkpoint_every: Positive = 10  # queries
    prove_every: Positive | None = None  # queries between searches of the memory; None: only at the start
    log: Annotated[Path | None, Field(exclude=True)] = None  # where events go
    sign_key: Annotated[Path | None, Field(exclude=True)] = None  # signs the ledger
    options: SerializeAsAny[MethodSettings]

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
