"""A service that gets single images, or noise from one client: how much do the others lose?

    python benchmarks/poison.py [--seeds 0,1] [--burn standard]

Three streams go through a real service on `glyphs`: 21 requests of one image each; 30 queries of random sine gratings
to a service that has just started; and the same after 24 honest queries. The accuracy on 896 other images, asked
without learning, is measured before and after, and after 10 honest queries that follow the noise. Of 40 such queries,
all after the tenth must be learned. Prints a line for each stream, and fails if a target is missed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import crodobo
from serving import serving

SIZE, HELD_OUT, SINGLES, NOISY, HONEST, RECOVERING = 64, 896, 21, 30, 24, 10
LAST = 40  # honest queries after the noise
LOST = 0.03  # accuracy that single images may cost
RIGHT_AFTER, RECOVERED = 0.8, 0.9  # shares of the accuracy that noise must leave


class Measurement:
    """A service, and the images that are sent to it."""

    def __init__(self, url: str, seed: int) -> None:
        self.client = crodobo.Client(url, timeout=120)
        benchmark = crodobo.load_benchmark("glyphs")
        order = torch.randperm(len(benchmark.labels), generator=torch.Generator().manual_seed(seed))
        self.images, self.labels = benchmark.images[order].numpy(), benchmark.labels[order].numpy()
        self.classes = benchmark.source.classes
        self.next, self.random = HELD_OUT, np.random.default_rng(seed)

    def accuracy(self) -> float:
        """The accuracy on the held-out images, without learning them."""
        right = 0
        for start in range(0, HELD_OUT, SIZE):
            answer = self.client.predict(self.images[start : start + SIZE], adapt=False)
            right += sum(
                label == self.classes[truth]
                for label, truth in zip(answer.labels, self.labels[start : start + SIZE], strict=True)
            )
        return right / HELD_OUT

    def honest(self, queries: int, size: int = SIZE) -> list[int]:
        """Send images of the stream. Returns how many of each query were learned."""
        learned = []
        for _ in range(queries):
            learned.append(self.send(self.images[self.next : self.next + size]))
            self.next += size
        return learned

    def noise(self, queries: int) -> None:
        """Send sine gratings in random directions."""
        side = self.images.shape[-1]
        row, column = np.mgrid[:side, :side] / side
        for _ in range(queries):
            waves, phase = self.random.uniform(-20, 20, (2, SIZE, 1, 1)), self.random.uniform(0, 6.3, (SIZE, 1, 1))
            grating = 127.5 * (1 + np.sin(waves[0] * row + waves[1] * column + phase))
            self.send(np.repeat(grating[:, None].astype(np.uint8), self.images.shape[1], axis=1))

    def send(self, images: np.ndarray) -> int:
        return self.client.predict(images).learned or 0


def singles(service: Measurement) -> tuple[list[float], bool]:
    """The accuracy before and after single images."""
    found = [service.accuracy()]
    service.honest(SINGLES, size=1)
    found.append(service.accuracy())
    return found, found[1] >= found[0] - LOST


def poisoned(service: Measurement) -> tuple[list[float], bool]:
    """The accuracy before noise, right after it, and after honest queries."""
    found = [service.accuracy()]
    service.noise(NOISY)
    found.append(service.accuracy())
    learned = service.honest(RECOVERING)
    found.append(service.accuracy())
    learned += service.honest(LAST - RECOVERING)
    print(f"  of {LAST} honest queries, not learned: {[number for number, each in enumerate(learned, 1) if not each]}")
    kept = found[1] >= RIGHT_AFTER * found[0] and found[2] >= RECOVERED * found[0]
    return found, kept and all(learned[RECOVERING:])


def poisoned_later(service: Measurement) -> tuple[list[float], bool]:
    """The same, after honest queries."""
    service.honest(HONEST)
    return poisoned(service)


STREAMS: dict[str, Callable[[Measurement], tuple[list[float], bool]]] = {
    f"{SINGLES} single images": singles,
    f"{NOISY} queries of noise at the start": poisoned,
    f"{NOISY} queries of noise after {HONEST} honest ones": poisoned_later,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0", help="0,1,…")
    parser.add_argument("--burn", default="standard", choices=["strict", "standard"])
    arguments = parser.parse_args()
    failed = False
    for seed in map(int, arguments.seeds.split(",")):
        for name, measure in STREAMS.items():
            with tempfile.TemporaryDirectory() as folder:
                options = ("--benchmark", "glyphs", "--burn", arguments.burn, "--seed", str(seed), "--max-wait", "0")
                with serving(Path(folder) / "state", *options) as service:
                    found, good = measure(Measurement(service.url, seed))
            shown = " → ".join(f"{100 * each:.1f} %" for each in found)
            print(f"seed {seed}, {name}: {shown}{'' if good else '  MISSED'}", flush=True)
            failed |= not good
    sys.exit(failed)


if __name__ == "__main__":
    main()
