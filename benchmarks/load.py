"""A service under more load than it can handle: 64 clients at once, each with its own image.

    python benchmarks/load.py [--seconds 120] [--clients 64] [--burn standard]
    python benchmarks/load.py --hostile [--seconds 120]

In the first half the service only predicts, so each row must equal the row that its image gets alone. In the second
half it adapts, and all rows of an image must be equal. Then queries go alternately through a service and straight to
its method, which shows the cost of HTTP, the receipt and the checkpoint. With --hostile there are two keys, one of them
hostile (hostile.py). Prints a table, and fails if a target is missed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # like the command; torch reads it when it is imported

import httpx2
import numpy as np
import torch
import uvicorn

from crodobo.core.query import Query
from crodobo.methods import get_method
from crodobo.serve.app import App
from crodobo.serve.service import Service
from crodobo.serve.settings import ServeSettings
from hostile import measure as measure_hostile
from serving import Serving, serving

DEADLINE = 10.0  # seconds
QUEUE = 32  # requests at a time, so half the clients are refused
SAME = 1e-5  # largest difference between rows of one image, whose sums may have another order
PATH = "/v1/predict?probabilities=true&adapt="
KIND = {"Content-Type": "application/octet-stream"}


@dataclass
class Seen:
    """What the clients have observed."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of answered requests
    refused: list[float] = field(default_factory=list)  # of refused requests
    wrong: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    rows: int = 0


class LoadClient:
    """Sends one to eight copies of its own image, again and again."""

    def __init__(self, number: int, shape: list[int]) -> None:
        self.random = np.random.default_rng(number)
        spots = self.random.integers(0, 256, (shape[0], 4, 4), dtype=np.uint8)  # not noise, which all looks alike
        self.image = spots[:, np.arange(shape[1]) * 4 // shape[1]][:, :, np.arange(shape[2]) * 4 // shape[2]]
        self.alone: np.ndarray | None = None

    def body(self, samples: int) -> bytes:
        return np.broadcast_to(self.image, (samples, *self.image.shape)).tobytes()

    async def learn(self, http: httpx2.AsyncClient) -> None:
        """Get the prediction for the image alone."""
        answer = await http.post(f"{PATH}false", content=self.body(1), headers=KIND)
        self.alone = rows_of(answer.content)[0]

    async def run(self, http: httpx2.AsyncClient, seen: Seen, until: float, adapt: bool) -> None:
        while time.monotonic() < until:
            samples = int(self.random.integers(1, 9))
            started = time.monotonic()
            try:
                answer = await http.post(f"{PATH}{str(adapt).lower()}", content=self.body(samples), headers=KIND)
            except httpx2.HTTPError as error:
                seen.statuses[type(error).__name__] += 1
                continue
            taken = time.monotonic() - started
            seen.statuses[str(answer.status_code)] += 1
            if answer.status_code == 200:
                seen.seconds.append(taken)
                seen.rows += samples
                self.check(rows_of(answer.content), samples, seen, adapt)
            else:
                seen.refused.append(taken)
                if "retry-after" not in answer.headers:
                    seen.wrong.append(f"{answer.status_code} without Retry-After")
                await asyncio.sleep(float(self.random.uniform(0.05, 0.2)))  # sooner than Retry-After says

    def check(self, rows: np.ndarray, samples: int, seen: Seen, adapt: bool) -> None:
        if len(rows) != samples:
            seen.wrong.append(f"{len(rows)} rows for {samples} images")
        elif adapt and np.ptp(rows, axis=0).max() > SAME:
            seen.wrong.append("rows of one image that differ")
        elif not adapt and np.abs(rows - self.alone).max() > SAME:
            seen.wrong.append("rows of another image")


def rows_of(content: bytes) -> np.ndarray:
    return np.array([list(row["probabilities"].values()) for row in json.loads(content)["predictions"]])


async def watch(served: Serving, seen: Seen, until: float) -> None:
    while time.monotonic() < until:
        seen.memory.append(served.memory())
        await asyncio.sleep(0.5)


async def load(served: Serving, clients: int, seconds: float) -> tuple[Seen, Seen]:
    """Run both halves."""
    shape = served.described()["inputs"][0]["shape"][1:]
    everyone = [LoadClient(number, shape) for number in range(clients)]
    halves = Seen(), Seen()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=served.url, timeout=10 * DEADLINE, limits=limits) as http:
        for client in everyone:
            await client.learn(http)
        known = np.array([client.alone for client in everyone])
        apart = np.abs(known[:, None] - known[None]).max(axis=2)[~np.eye(clients, dtype=bool)].min()
        if apart < 10 * SAME:
            sys.exit(f"Two images get nearly the same prediction ({apart:.1e}). Use fewer clients.")
        for adapt, seen in zip((False, True), halves, strict=True):
            until = time.monotonic() + seconds / 2
            await asyncio.gather(
                watch(served, seen, until), *(client.run(http, seen, until, adapt) for client in everyone)
            )
    return halves


# --- overhead ---


@contextlib.contextmanager
def in_this_process(folder: Path) -> Iterator[tuple[Service, str]]:
    """A service in a thread, so that queries can also go straight to its method."""
    options = get_method("crodobo").Settings.of(warmup=1, burn="standard")
    with Service(ServeSettings.of(options=options, state=folder / "state", max_wait=0)) as service:
        yield from run_in_thread(service)


def run_in_thread(service: Service) -> Iterator[tuple[Service, str]]:
    app = App(service, None)
    server = uvicorn.Server(uvicorn.Config(app.api, port=0, loop="asyncio", http="httptools", log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while service.state != "ready" or not server.started:
        if not thread.is_alive():
            sys.exit("The service did not start.")
        time.sleep(0.05)
    try:
        yield service, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def overhead(pairs: int) -> tuple[float, float, float]:
    """Median seconds of a query through the service and by the method alone, and the ratio of their CPU times."""
    through, past = list[float](), list[float]()
    processor = {id(through): list[float](), id(past): list[float]()}
    with tempfile.TemporaryDirectory() as folder, in_this_process(Path(folder)) as (service, url):
        size = service.settings.query_size
        batches = torch.randint(0, 256, (4, size, *service.source.shape), dtype=torch.uint8)
        with httpx2.Client(base_url=url, timeout=60) as http:
            for number in range(pairs + 2):
                images = batches[number % len(batches)]
                for way in (through, past) if number % 2 else (past, through):
                    content, copy = images.numpy().tobytes(), images.clone()
                    started, worked = time.perf_counter(), time.process_time()
                    if way is through:
                        http.post("/v1/predict", content=content, headers=KIND).raise_for_status()
                    else:
                        with Query(copy, service.memory) as query:
                            service.session.method.step(query)
                    way.append(time.perf_counter() - started)
                    processor[id(way)].append(time.process_time() - worked)
    ratio = statistics.median(processor[id(through)][2:]) / statistics.median(processor[id(past)][2:])
    return statistics.median(through[2:]), statistics.median(past[2:]), ratio


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--burn", default="standard")
    parser.add_argument("--hostile", action="store_true")
    chosen = parser.parse_args()
    options = ["--warmup", "20", "--burn", chosen.burn, "--norm", "running"]
    if chosen.hostile:
        report(measure_hostile(chosen.seconds / 2, *options))
    options += ["--queue", str(QUEUE), "--deadline", str(DEADLINE), "--rate", "0"]
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "state", *options) as served:
        halves = asyncio.run(load(served, chosen.clients, chosen.seconds))
        queries = served.answered() - chosen.clients
        traces = served.errors.read_text().count("Traceback")
    through, past, processor = overhead(chosen.pairs)

    targets: dict[str, bool] = {}
    for name, seen in zip(("predicting", "adapting"), halves, strict=True):
        statuses = ", ".join(f"{status} {count}" for status, count in sorted(seen.statuses.items()))
        answered = np.array(seen.seconds or [np.nan])
        half = np.percentile(answered, [50, 95, 100])
        print(f"{name:<12}{statuses}; {seen.rows} rows, {len(seen.wrong)} wrong answers")
        print(f"{'':<12}seconds per answer: {half[0]:.2f} median, {half[1]:.2f} at 95 %, {half[2]:.2f} at most")
        print(f"{'':<12}memory: {seen.memory[0]:.0f} MB at the start, {seen.memory[-1]:.0f} MB at the end")
        targets[f"{name}: no status but 200, 429 and 503"] = seen.statuses.keys() <= {"200", "429", "503"}
        targets[f"{name}: overloaded, and some requests were answered"] = {"200", "503"} <= seen.statuses.keys()
        targets[f"{name}: every client got its own rows {set(seen.wrong) or ''}"] = not seen.wrong
        targets[f"{name}: no answer later than {DEADLINE:g} s plus one"] = float(half[2]) <= DEADLINE + 1
        quarter = len(seen.memory) // 4 or 1
        early, late = statistics.median(seen.memory[quarter : 2 * quarter]), statistics.median(seen.memory[-quarter:])
        targets[f"{name}: memory {early:.0f} MB, then {late:.0f} MB (at most 5 % more)"] = late <= 1.05 * early
    print(f"{queries} queries were answered; the service costs {100 * (processor - 1):+.1f} % CPU time")
    targets["no traceback"] = not traces
    cost = 100 * (through / past - 1)
    times = f"{1000 * through:.1f} ms a query, {1000 * past:.1f} ms by the method alone"
    targets[f"{times}: {cost:+.1f} % (at most 10 %)"] = cost <= 10
    report(targets)


def report(targets: dict[str, bool]) -> NoReturn:
    """Print the targets, and end with the number of missed ones."""
    for text, reached in targets.items():
        print(f"{'reached' if reached else 'MISSED '}  {text}")
    sys.exit(sum(not reached for reached in targets.values()))


if __name__ == "__main__":
    main()
