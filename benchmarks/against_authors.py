"""CroDoBo beside the loop of the authors' released code, on the same network, stream and machine.

The authors' loop, from its description: each learner takes two updates per query one after the other, first on the
source, then on the target; images are augmented one by one; the learners run in one thread of control with all cores
inside each operation; there is no warm-up, and predictions use running statistics. Every query is given to all variants
in turn, so that ratios of times hold on a noisy machine.

    python benchmarks/against_authors.py --data FOLDER --weights mobilenet_v2.pth [--pair photo-art] [--seeds 0,1,2]

"same time" may take as many steps per query as fit into the time that the authors' loop took for the same query, less
what examining and predicting took for the query before.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.engine import Sequence, available_cores
from crodobo.losses import co_supervision, diversity, entropy
from crodobo.methods import CroDoBo
from crodobo.methods.crodobo import average_of_peers
from crodobo.nn.learner import Learner
from speed import write_and_print
from streams import FASHION
from streams_cells import PAIRS, Places, load_stream

SHORTENED = 24 * 64  # samples of a pair that has no length of its own
AUTHORS, ONE, SAME, DEFAULT = "authors' loop", "crodobo, one step", "crodobo, same time", "crodobo, default"


class AuthorsLoop(CroDoBo):
    """The loop of the released code, with the package's losses."""

    name = "authors-loop"
    protected = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.engine = Sequence(available_cores())
        for learner in self.learners:
            learner.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def one_by_one(self, kind: str, images: Tensor, generator: torch.Generator) -> Tensor:
        view = getattr(self.augment, kind)
        return torch.cat([view(image[None], generator) for image in images])

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        weak = query.own(self.one_by_one("weak", images, self.generator))
        strong = query.own(self.one_by_one("strong", images, self.generator))

        def learn_source(learner: Learner) -> None:
            batch = self.source.bootstrap(len(images), learner.generator)
            views = self.one_by_one("weak", batch.images, learner.generator)
            learner.update(F.cross_entropy(learner.forward(views), batch.labels))

        def learn_target(learner: Learner, logits: Tensor, peer: Tensor) -> None:
            loss = entropy(logits) + self.settings.lam * diversity(logits)
            loss = loss + co_supervision(learner.forward(strong), peer, self.settings.tau)
            learner.update(loss)

        self.engine.map(learn_source, self.learners)
        logits = self.engine.map(lambda learner: learner.forward(weak), self.learners)
        peers = average_of_peers([torch.softmax(each.detach(), dim=1) for each in logits])
        self.engine.map(learn_target, self.learners, logits, peers)
        return Adaptation()


@dataclass
class Variant:
    """A method on its way through the stream."""

    method: CroDoBo
    seconds: list[float] = field(default_factory=list)
    right: int = 0
    samples: int = 0

    def take(self, images: Tensor, labels: Tensor) -> float:
        """Adapt to a copy of the images and predict them. Returns the seconds."""
        started = time.perf_counter()
        with Query(images.clone()) as query:
            prediction = self.method.step(query)
        self.seconds.append(time.perf_counter() - started)
        self.right += int((prediction.labels == labels).sum())
        self.samples += len(labels)
        return self.seconds[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="photo-art", choices=list(PAIRS))
    parser.add_argument("--seeds", default="0", help="for example 0,1,2")
    parser.add_argument("--queries", type=int, help="end each stream after this many")
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--fashion", default=FASHION, type=Path, metavar="FOLDER")
    parser.add_argument("--weights", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("runs/against-authors.json"))
    arguments = parser.parse_args()
    places = Places(arguments.data, arguments.fashion, arguments.weights)
    if missing := PAIRS[arguments.pair].missing(places):
        parser.error(f"{arguments.pair} needs {' and '.join(missing)}.")
    results = [measure(arguments, places, int(seed)) for seed in arguments.seeds.split(",")]
    rows = [
        [
            name,
            f"{statistics.fmean(result[name]['online'] for result in results):.1f}",
            f"{statistics.median(result[name]['seconds'] for result in results):.2f}",
            f"{statistics.median(result[name]['ratio'] for result in results):.2f}",
        ]
        for name in (AUTHORS, ONE, SAME, DEFAULT)
    ]
    head = [f"{arguments.pair}, seeds {arguments.seeds}", "online %", "s / query", "× authors' time"]
    write_and_print(arguments.out, results, head, rows)


def measure(arguments: argparse.Namespace, places: Places, seed: int) -> dict[str, Any]:
    """All variants on one stream."""
    pair = PAIRS[arguments.pair]
    benchmark = load_stream(arguments.pair, places, pair.samples or SHORTENED)
    shared: dict[str, Any] = pair.options | {"seed": seed, "learners": arguments.learners}
    if pair.needs_weights:
        shared["weights"] = places.weights
    published = {"plain": True, "norm": "running", "warmup": 0 if pair.needs_weights else 300}

    def make(kind: type[CroDoBo], **options: Any) -> Variant:
        return Variant(kind(benchmark.source, augment=benchmark.augment, **shared | options))

    variants = {
        AUTHORS: make(AuthorsLoop, **published),
        ONE: make(CroDoBo, steps=1),
        SAME: make(CroDoBo),
        DEFAULT: make(CroDoBo),
    }
    beside = 0.0  # seconds of "same time" that were not spent on steps
    for number, (query, labels) in enumerate(benchmark.stream(64, seed, queries=arguments.queries), 1):
        with query:
            allowed = variants[AUTHORS].take(query.images, labels)
            same = variants[SAME].method
            budget = max(0.01, allowed - beside)
            same.settings = same.settings.model_copy(update={"budget": budget})
            seconds = {name: variants[name].take(query.images, labels) for name in (ONE, SAME, DEFAULT)}
            beside = max(0.0, seconds[SAME] - budget)
        print(f"seed {seed}, query {number}", end="\r", flush=True)
    theirs = variants[AUTHORS].seconds
    return {
        name: {
            "online": 100 * variant.right / variant.samples,
            "seconds": statistics.median(variant.seconds),
            "ratio": statistics.median(own / their for own, their in zip(variant.seconds, theirs, strict=True)),
        }
        for name, variant in variants.items()
    }


if __name__ == "__main__":
    main()
