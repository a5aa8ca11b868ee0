"""Where a session's learners come from: a warm start, or the session's checkpoint.

A warm start is a file of learners that have learned the source, stored once and used again. All methods of a comparison
start from the same file, which is complete. A service that is reset goes back to its own, which holds only weights:
moments of the optimiser beside those of a checkpoint would help to find out what was learned in between.
"""

import time
from pathlib import Path
from typing import Any, Protocol

from crodobo.config import LearnerSettings, MethodSettings, SessionSettings
from crodobo.core.observer import Observer
from crodobo.core.source import Source
from crodobo.engine import make_engine
from crodobo.errors import BadCheckpoint
from crodobo.methods import Method
from crodobo.nn.learner import Learner
from crodobo.nn.learners import make_learners, warm_up
from crodobo.session.checkpoint import differences, load_checkpoint, other_version
from crodobo.storage.tensors import UnreadableTensors, load_header, load_tensors, numbered, save_tensors, with_prefix
from crodobo.views.augment import Augment
from crodobo.views.chosen_views import ChosenViews

DECISIVE = set(LearnerSettings.model_fields) - {"norm", "running_weight"} | {"seed"}
PLAIN = "plain_start."  # in the names of tensors of a warm-up without source views


class PublicData(Protocol):
    """What a session learns from before the stream: a `Benchmark`, or a `Public`."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Source: ...
    @property
    def augment(self) -> Augment: ...
    @property
    def stamp(self) -> str: ...


def warm_learners(
    public: PublicData,
    settings: MethodSettings,
    observer: Observer | None = None,
    path: Path | None = None,
    *,
    complete: bool = True,
) -> tuple[list[Learner], float]:
    """Learners after their warm-up on the source, and how many seconds it took.

    `path` is a warm start to use. If it does not exist, it is written after the warm-up, `complete` or not; see
    `save_warm_start`.
    """
    if path and path.exists():
        return load_warm_start(path, public, settings)
    observer = observer or Observer()
    learners = make_learners(public.source, settings.learners, settings.seed, settings)
    engine = make_engine(settings.learners, parallel=settings.parallel, threads=settings.threads)
    rounds = 2 if ChosenViews(settings.source_views, public.source).open else 1
    observer.warming_up(settings.warmup, settings.learners, rounds)
    started = time.perf_counter()
    warm_up(learners, engine, public.source, public.augment, observer.warmed_up_step)
    seconds = time.perf_counter() - started
    if path:
        save_warm_start(path, public, learners, settings, seconds, complete=complete)
    return learners, seconds


def save_warm_start(
    path: Path,
    public: PublicData,
    learners: list[Learner],
    settings: MethodSettings,
    seconds: float,
    *,
    complete: bool = True,
) -> None:
    """Write warm learners to a file, with everything that decided them.

    Learners from a `complete` one go on to the bit as if they had not been stored. Otherwise only weights and BatchNorm
    statistics are written; the optimiser begins anew, and random draws begin at the seed.
    """
    states = [learner.state() for learner in learners]
    if not complete:
        states = [{name: value for name, value in state.items() if is_weight(name)} for state in states]
    header = {"made_of": made_of(public, settings), "learners": len(learners), "seconds": seconds}
    save_tensors(path, numbered(states), header, private=True)


def load_warm_start(path: Path, public: PublicData, settings: MethodSettings) -> tuple[list[Learner], float]:
    """The first learners of a warm start, and how many seconds the warm-up took.

    A warm start made from anything else, or with too few learners, is refused.
    """
    remedy = "Delete it; it is made again."
    try:
        tensors, header = load_tensors(path)
        stored, count, seconds = header["made_of"], int(header["learners"]), float(header["seconds"])
    except (UnreadableTensors, KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path} is damaged or not a warm start.", remedy) from error
    if stored != made_of(public, settings) or count < settings.learners:
        raise BadCheckpoint(f"{path} is the warm start of other settings.", remedy)
    learners = make_learners(public.source, settings.learners, settings.seed, settings)
    for number, learner in enumerate(learners):
        state = with_prefix(f"learners.{number}.", tensors)
        generator = learner.generator.get_state()
        names = ["generator"] + [PLAIN + "generator" for name in state if name.startswith(PLAIN)]
        learner.load_state(dict.fromkeys(names, generator) | state)
    return learners, seconds


def is_weight(name: str) -> bool:
    """Whether a tensor of a learner's state is one of its weights or BatchNorm statistics.

    >>> [name for name in ("network.classifier.bias", "plain_start.generator") if is_weight(name)]
    ['network.classifier.bias']
    """
    return name.removeprefix(PLAIN).split(".")[0] not in ("generator", "optimiser")


def stored_learners(path: Path, settings: MethodSettings) -> int:
    """How many learners a warm start holds; 0 if there is no file, or one that is unreadable and made again."""
    try:
        header = load_header(path)
        count, stored = int(header["learners"]), dict(header["made_of"])
    except (UnreadableTensors, KeyError, ValueError, TypeError):
        return 0
    wanted = settings.model_dump(mode="json", include=DECISIVE)
    if different := differences({name: stored.get(name) for name in wanted}, wanted):
        problem = f"{path} is the warm start of other settings: {different}."
        raise BadCheckpoint(problem, "Choose another folder, or start over.", settings=("out", "fresh"))
    return count


def make_method(kind: type[Method], public: PublicData, learners: list[Learner], settings: MethodSettings) -> Method:
    """A method with these learners on this source."""
    return kind(public.source, augment=public.augment, **dict(settings) | {"learners": learners})


def restore_method(
    kind: type[Method], public: PublicData, settings: SessionSettings, folder: Path, identity: dict[str, Any]
) -> tuple[Method, dict[str, Any]] | None:
    """The method and the progress of the checkpoint in a folder, or None if the folder has no checkpoint."""
    remedies = (*settings.FOLDER, "fresh")
    stored = load_checkpoint(folder, identity, remedies)
    if stored is None:
        return None
    tensors, progress = stored
    options = settings.options
    learners = make_learners(public.source, options.learners, options.seed, options)
    method = make_method(kind, public, learners, options)
    try:
        method.load_state(tensors)
    except (KeyError, RuntimeError) as error:
        raise other_version(folder, remedies) from error
    return method, progress


def made_of(public: PublicData, settings: MethodSettings) -> dict[str, Any]:
    """Everything that decides a warm start."""
    shape = "×".join(map(str, public.source.shape))
    decisive = settings.model_dump(mode="json", include=DECISIVE)
    return {"benchmark": public.name, "shape": shape, "data": public.stamp} | decisive
