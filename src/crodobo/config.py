"""Settings: validated models, one inside the other. Every result stores the settings that made it."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, field_validator

from crodobo.errors import BadSettings
from crodobo.normalisation import Norm

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


class RunSettings(Settings):
    """What a run is made of."""

    benchmark: str = "glyphs"
    method: str = "crodobo"
    query_size: Positive = 64
    queries: Positive | None = None
    stream: str = "random"  # or by-class, dirichlet(α), drift
    stream_seed: Seed | None = None  # None: the run's seed
    image_size: ImageSize | None = None
    data: DataSettings | None = None
    cache_size: NonNegative = 50.0  # gigabytes
    checkpoint_every: Positive = 10
    options: SerializeAsAny[MethodSettings]

    @field_validator("stream")
    @classmethod
    def _name_of_an_order(cls, name: str) -> str:
        from crodobo.data.order import full_name  # data/ stands above; this one file of it needs errors.py alone

        return full_name(name)

    @property
    def order_seed(self) -> int:
        """The seed of the stream's order."""
        return self.options.seed if self.stream_seed is None else self.stream_seed


class AdaptSettings(Settings):
    """What adapting to a folder of private images is made of."""

    inbox: Path
    predictions: Path
    state: Path
    quarantine: Path
    data: DataSettings
    options: SerializeAsAny[MethodSettings]
    preset: str | None = None
    method: str = "crodobo"
    query_size: Positive = 64
    max_wait: NonNegative = 10.0  # seconds
    watch: bool = False
    shuffle: bool = False  # take what lies there in a random order, not by age
    recursive: bool = False
    keep_files: bool = False
    probabilities: bool = False
    image_size: ImageSize | None = None
    cache_size: NonNegative = 50.0  # gigabytes
    checkpoint_every: Positive = 10
    prove_every: Positive | None = None  # queries between searches of the memory; None: at the start alone

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide what the learners are; with others they cannot go on."""
        data = self.model_dump(mode="json", include={"preset", "method", "image_size", "data", "options"})
        for free in ("parallel", "threads", "burn"):
            data["options"].pop(free)
        return data
