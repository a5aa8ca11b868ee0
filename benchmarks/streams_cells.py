"""The cells of the matrix of streams, and how one is measured. `benchmarks/streams.py` runs them."""

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crodobo.config import DataSettings, MethodSettings
from crodobo.core.metrics import QueryRecord, StreamRecord
from crodobo.data import Benchmark, load_benchmark
from crodobo.data.order import shuffled
from crodobo.evaluate.protocols import one_pass, online
from crodobo.methods import get_method
from crodobo.session.warm_start import load_warm_start, make_method, warm_learners
from crodobo.storage.lock import locked_file

FORMAT = 2  # of a cell's record; cells of another format are measured again
LEARNERS = 2  # in a warm start, shared by all methods
FULL = 64  # the usual query size; smaller queries get fewer samples
FEW_SAMPLES = 1280
SUBSET_SEED = 0  # of the samples of a shortened stream, which are the same for all orders and seeds
MOBILENET = "torchvision/mobilenet_v2"
ORDERS = ("random", "dirichlet(1)", "drift", "dirichlet(0.1)", "by-class")
SIZES = (64, 16, 1)


class Places(NamedTuple):
    """Where the data is that the project does not contain."""

    data: Path | None
    fashion: Path
    weights: Path | None


@dataclass(frozen=True)
class Pair:
    """A source and a target, and the settings of all methods on them. Paths are relative to the data folder."""

    title: str
    benchmark: str  # built in, or a preset
    source: str | None = None
    target: str | None = None
    image_size: int | None = None
    samples: int | None = None  # of the target; all if not set
    sizes: tuple[int, ...] = SIZES
    options: dict[str, Any] = field(default_factory=dict)
    cost: float = 1.0  # of an image, relative to glyphs

    @property
    def needs_weights(self) -> bool:
        return self.options.get("backbone") == MOBILENET

    def missing(self, places: Places) -> list[str]:
        """The options of the command that are needed for this pair and not given."""
        missing = ["--data"] if self.target and not places.data else []
        if self.benchmark == "fashion-photos" and not places.fashion.is_dir():
            missing.append("--fashion")
        return missing + (["--weights"] if self.needs_weights and not places.weights else [])

    def images(self, places: Places) -> DataSettings | None:
        """Where the images are; None if they are built in."""
        if not self.target or not places.data:
            return None
        source = places.data / self.source if self.source else places.fashion
        return DataSettings.of(source=source, target=places.data / self.target)


# The frozen model of fashion-photos has to know the classes to be worth comparing, so it gets the usual warm-up and not
# the paper's protocol, which has none.
PAIRS = {
    "glyphs": Pair("glyphs", "glyphs"),
    "mnist-mnistm": Pair("MNIST → MNIST-M", "digits/mnist-mnistm", "digits/mnist", "digits/mnist-m"),
    "photo-art": Pair(
        *("photo → art", "pacs/photo-art", "pacs/photo", "pacs/art_painting"),
        image_size=64,
        samples=24 * FULL,
        sizes=(FULL,),
        options={"backbone": MOBILENET, "warmup": 40},
        cost=6.0,
    ),
    "fashion-photos": Pair(
        *("Fashion-MNIST → photos", "fashion-photos", None, "clothing"),
        image_size=64,
        samples=24 * FULL,
        sizes=(FULL,),
        options={"backbone": MOBILENET, "warmup": 300},
        cost=6.0,
    ),
}


@dataclass(frozen=True)
class Variant:
    """A column of the table: a method and the settings that only it has."""

    title: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    cost: float = 1.0  # relative to no-adaptation


METHODS = {
    "no-adaptation": Variant("no-adaptation", "no-adaptation"),
    "bn-statistics": Variant("bn-statistics", "bn-statistics"),
    "source-only": Variant("source-only", "source-only", cost=5),
    "tent": Variant("tent", "tent", cost=5),
    "single": Variant("single", "single", cost=12),
    "crodobo-plain": Variant("crodobo, plain", "crodobo", {"plain": True}, cost=20),
    "crodobo": Variant("crodobo", "crodobo", cost=20),
}
REFERENCES = ("no-adaptation", "bn-statistics", "source-only")  # the default must not be worse than any of them
DEFAULT = "crodobo"


@dataclass(frozen=True)
class Cell:
    """One stream of one method."""

    pair: str
    order: str
    size: int
    method: str
    seed: int

    @property
    def title(self) -> str:
        """The name to show."""
        queries = "single images" if self.size == 1 else f"queries of {self.size}"
        return f"{self.pair}, {self.order}, {queries}, {METHODS[self.method].title}, seed {self.seed}"

    @property
    def samples(self) -> int | None:
        """How many samples of the target are used; None for all."""
        few = PAIRS[self.pair].samples
        return few if self.size == FULL else min(few or FEW_SAMPLES, FEW_SAMPLES)

    @property
    def cost(self) -> float:
        """A rough estimate of the time it takes, in any unit."""
        pair, samples = PAIRS[self.pair], self.samples or 5000
        return METHODS[self.method].cost * (samples * pair.cost + 30 * samples / self.size)

    @property
    def warm_up_cost(self) -> float:
        """The same for the warm start that it needs."""
        pair = PAIRS[self.pair]
        return LEARNERS * MethodSettings.of(**pair.options).warmup * FULL * METHODS["source-only"].cost * pair.cost

    def warm_start(self, folder: Path) -> Path:
        """The file of the warm start that all methods of a pair and seed share, but for the published algorithm."""
        published = "-plain" if self.options.get("plain") else ""
        return folder / "warm-starts" / f"{self.pair}{published}-seed{self.seed}.safetensors"

    @property
    def urgency(self) -> tuple[int, ...]:
        """Cells are measured in this order: single images last, then by seed, then whole rows of the table."""
        places = (list(PAIRS).index(self.pair), -self.size, ORDERS.index(self.order), list(METHODS).index(self.method))
        return (self.size == 1, self.seed, *places)

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the method, where they differ from its defaults."""
        variant = METHODS[self.method]
        known = get_method(variant.method).Settings.model_fields
        own = {name: value for name, value in variant.options.items() if name in known}
        return PAIRS[self.pair].options | own

    @property
    def identity(self) -> dict[str, Any]:
        """What decides a result. A record with another identity is not a record of this cell."""
        return asdict(self) | {"samples": self.samples, "options": self.options, "format": FORMAT}


def all_cells(
    pairs: Iterable[str], orders: Iterable[str], sizes: Iterable[int], methods: Iterable[str], seeds: Iterable[int]
) -> list[Cell]:
    """The chosen cells, the most telling ones first."""
    cells = [
        Cell(pair, order, size, method, seed)
        for pair in pairs
        for order in orders
        for size in sizes
        if size in PAIRS[pair].sizes
        for method in methods
        for seed in seeds
    ]
    return sorted(cells, key=lambda cell: cell.urgency)


def measure(cell: Cell, places: Places, folder: Path, parallel: bool = True) -> dict[str, Any]:
    """Run a method over its stream. Warm starts are stored in the folder."""
    torch.set_num_threads(1)
    pair, kind = PAIRS[cell.pair], get_method(METHODS[cell.method].method)
    shared: dict[str, Any] = {"seed": cell.seed, "threads": 1, "parallel": parallel}
    if pair.needs_weights:
        shared["weights"] = places.weights
    benchmark = load_stream(cell.pair, places, cell.samples)
    settings = kind.Settings.of(**cell.options | shared)
    path = cell.warm_start(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(path.with_suffix(".lock")):  # another process may be making the same warm start
        if not path.exists():
            common = {name: value for name, value in cell.options.items() if name in MethodSettings.model_fields}
            warm_learners(benchmark, MethodSettings.of(**common | shared | {"learners": LEARNERS}), path=path)
    learners, _ = load_warm_start(path, benchmark, settings)
    method = make_method(kind, benchmark, learners, settings)
    method.expect(-(-len(benchmark.labels) // cell.size))
    record = online(method, benchmark.stream(cell.size, cell.seed, kind=cell.order))
    final = None
    if cell.size > 1:
        mixed = shuffled(benchmark.labels, cell.seed)
        final = one_pass(method, benchmark.images, benchmark.labels, FULL, mixed).accuracy
    return cell.identity | results(record) | {"one_pass": final, "settings": settings.model_dump(mode="json")}


@cache
def load_pair(name: str, places: Places) -> Benchmark:
    pair = PAIRS[name]
    return load_benchmark(pair.benchmark, pair.image_size, pair.images(places))


@cache
def load_stream(name: str, places: Places, samples: int | None) -> Benchmark:
    """A pair with `samples` random samples of its target, all in memory."""
    benchmark = load_pair(name, places)
    chosen = torch.arange(len(benchmark.labels))
    if samples:
        chosen = shuffled(benchmark.labels, SUBSET_SEED)[:samples]
    return replace(benchmark, images=benchmark.images[chosen], labels=benchmark.labels[chosen])


def results(record: StreamRecord) -> dict[str, Any]:
    """The measurements of a stream. Accuracies are fractions."""
    estimate, error = estimates(record.rows)
    return {
        "online": record.online_accuracy,
        "queries": record.queries,
        "seconds_per_query": statistics.median(row.seconds for row in record.rows),
        "predicted_only": sum(predicted_only(row) for row in record.rows),
        "restored": sum(row.restored for row in record.rows),
        "refused": len(record.refused),
        "estimate": estimate,
        "estimate_error": error,
    }


def predicted_only(row: QueryRecord) -> bool:
    """Whether a query was predicted and not learned."""
    return row.predicted_only is not None


def estimate_of(row: QueryRecord) -> float | None:
    """The estimate of the accuracy that was shown with a query, if there was one."""
    return getattr(row, "estimate", None)


def estimates(rows: list[QueryRecord], window: int = FULL) -> tuple[float | None, float | None]:
    """The mean estimate of the accuracy, and how far it is from the truth on average.

    Both are compared over windows of at least 64 samples: the accuracy of a single image is 0 or 1.
    """
    samples, expected, correct = [0], [0.0], [0]
    for row in rows:
        if (estimate := estimate_of(row)) is None:
            continue
        if samples[-1] >= window:
            samples, expected, correct = [*samples, 0], [*expected, 0.0], [*correct, 0]
        samples[-1] += row.samples
        expected[-1] += row.samples * estimate
        correct[-1] += row.correct
    if not (total := sum(samples)):
        return None, None
    error = sum(abs(guess - truth) for guess, truth in zip(expected, correct, strict=True))
    return sum(expected) / total, error / total
