"""Names of result folders, which tell results with different settings apart."""

import hashlib
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from crodobo.config import AS_PUBLISHED, DataSettings

if TYPE_CHECKING:
    from crodobo.evaluate.settings import RunSettings

# Settings that a run's name has in front, or that do not change a result.
UNNAMED = {"benchmark", "method", "options", "learners", "seed", "parallel", "checkpoint_every", "cache_size", "data"}
UNNAMED |= {"log", "sign_key", "prove_every"}


def run_name(settings: "RunSettings") -> str:
    """The name of a run's folder.

    >>> from crodobo.evaluate.settings import RunSettings
    >>> from crodobo.methods import CroDoBo
    >>> run_name(RunSettings(options=CroDoBo.Settings()))
    'glyphs-crodobo-k2-seed0'
    >>> run_name(RunSettings(queries=5, options=CroDoBo.Settings(seed=1, backbone="torchvision/resnet18")))
    'glyphs-crodobo-k2-seed1-queries5-backbone-torchvision-resnet18'
    >>> run_name(RunSettings(options=CroDoBo.Settings(plain=True)))
    'glyphs-crodobo-k2-seed0-plain'
    >>> run_name(RunSettings(stream="dirichlet(0.1)", stream_seed=3, options=CroDoBo.Settings()))
    'glyphs-crodobo-k2-seed0-stream-dirichlet0.1-stream-seed3'
    """
    options = settings.options
    name = f"{settings.benchmark.replace('/', '-')}-{settings.method}-k{options.learners}-seed{options.seed}"
    published = [each for each, value in AS_PUBLISHED.items() if options.plain and getattr(options, each) == value]
    changed = _changed(settings, UNNAMED) + _changed(options, (*UNNAMED, *published))
    return name + changed + as_data_name(settings.data)


def _changed(settings: BaseModel, unnamed: Container[str]) -> str:
    """The settings that differ from their defaults."""
    fields = {name: info.default for name, info in type(settings).model_fields.items() if name not in unnamed}
    values = {name: getattr(settings, name) for name, default in fields.items() if getattr(settings, name) != default}
    return "".join(as_name(name, value) for name, value in values.items())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def as_name(setting: str, value: Any) -> str:
    """A setting as a part of a folder's name, without characters that are awkward in a path or a shell.

    >>> as_name("query_size", 8), as_name("stream", "dirichlet(0.1)"), as_name("pretrained", True)
    ('-query-size8', '-stream-dirichlet0.1', '-pretrained')
    """
    if isinstance(value, tuple):
        value = "-".join(map(str, value))
    if isinstance(value, BaseModel):
        value = _digest(value.model_dump_json())
    text = value.stem if isinstance(value, Path) else "" if value is True else str(value)
    text = text.translate(str.maketrans("/", "-", "()"))
    return f"-{setting.replace('_', '-')}{'-' if text[:1].isalpha() else ''}{text}"


def as_data_name(data: DataSettings | None) -> str:
    """The settings of images on disk as a part of a folder's name.

    >>> as_data_name(DataSettings(grey=True, source_limit=100, fit="pad"))
    '-source-limit100-fit-pad-grey'
    >>> as_data_name(DataSettings(source=Path("/data/public")))
    '-at-b6c8e6'
    """
    if data is None:
        return ""
    paths = [str(path) for path in (data.folder, data.source, data.target) if path]
    return (f"-at-{_digest(repr(paths))}" if paths else "") + _changed(data, ("folder", "source", "target"))
