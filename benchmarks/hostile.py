"""Two keys, one of them hostile: how much of its throughput does the honest one keep? `load.py --hostile` runs it.

The honest key has a few clients that send images and wait for the answers. The hostile key keeps hundreds of stalled
bodies open, sends full requests without a pause whatever it is told, and forms of huge images. It runs in a process of
its own, with a low priority, as if it were on another machine.
"""

import asyncio
import contextlib
import io
import itertools
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx2
import numpy as np
from PIL import Image

from crodobo.serve.keys import add_key
from serving import Serving, serving

HONEST = 8  # clients
SAMPLES = 8  # images in an honest request
STALLED = 200  # bodies
FLOODING = 32  # clients
FORMS = 2
TARGET = 0.4  # of the throughput alone
KIND = {"Content-Type": "application/octet-stream"}


async def honest(url: str, key: str, shape: list[int], seconds: float) -> tuple[float, Counter[int]]:
    """Answered images per second, and the statuses."""
    statuses: Counter[int] = Counter()
    until = time.monotonic() + seconds
    headers = KIND | {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as http:

        async def work(number: int) -> None:
            images = np.random.default_rng(number).integers(0, 256, (SAMPLES, *shape), dtype=np.uint8)
            while time.monotonic() < until:
                answer = await http.post("/v1/predict", content=images.tobytes())
                statuses[answer.status_code] += 1
                if answer.status_code != 200:
                    await asyncio.sleep(0.1)

        await asyncio.gather(*map(work, range(HONEST)))
    return SAMPLES * statuses[200] / seconds, statuses


def attack(url: str, port: int, key: str, shape: list[int], query_size: int) -> None:
    """Do harm until the process is ended."""
    os.nice(19 - os.nice(0))
    asyncio.run(attack_together(url, port, key, shape, query_size))


async def attack_together(url: str, port: int, key: str, shape: list[int], query_size: int) -> None:
    full = np.random.default_rng(99).integers(0, 256, (query_size, *shape), dtype=np.uint8).tobytes()
    file = io.BytesIO()
    Image.new("P", (8000, 4900)).save(file, "PNG")
    huge = [("image", ("image", file.getvalue(), "image/png"))] * 8
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)

    async def stall() -> None:
        head = f"POST /v1/predict HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nContent-Length: 200\r\n\r\nx"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        await reader.read()
        writer.close()

    async def repeat(number: int) -> None:
        for _ in itertools.count():
            with contextlib.suppress(Exception):
                if number < STALLED:
                    await stall()
                elif number < STALLED + FLOODING:
                    await http.post("/v1/predict", content=full, headers=KIND)
                else:
                    await http.post("/v1/predict", files=huge)

    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits) as http:
        await asyncio.gather(*map(repeat, range(STALLED + FLOODING + FORMS)))


def measure(seconds: float, *options: str) -> dict[str, bool]:
    """Print both throughputs, and return which targets are reached."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {name: add_key(Path(folder) / "keys.json", name, "client") for name in ("honest", "hostile")}
        command = ("--keys", str(Path(folder) / "keys.json"), *options)
        with serving(Path(folder) / "state", *command) as served:
            return compare(served, keys, seconds)


def compare(served: Serving, keys: dict[str, str], seconds: float) -> dict[str, bool]:
    described = served.described(Authorization=f"Bearer {keys['honest']}")
    shape, query_size = described["inputs"][0]["shape"][1:], described["parameters"]["max_batch"]
    asyncio.run(honest(served.url, keys["honest"], shape, 3))  # warms up
    alone, _ = asyncio.run(honest(served.url, keys["honest"], shape, seconds))
    before = served.memory()
    arguments = (served.url, served.port, keys["hostile"], shape, query_size)
    process = multiprocessing.get_context("spawn").Process(target=attack, args=arguments, daemon=True)
    process.start()
    try:
        time.sleep(5)
        beside, statuses = asyncio.run(honest(served.url, keys["honest"], shape, seconds))
        memory = served.memory()
    finally:
        process.kill()
        process.join()
    said = ", ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
    print(f"honest key alone: {alone:.1f} images/s; beside a hostile key: {beside:.1f} images/s ({said})")
    print(f"memory: {before:.0f} MB, then {memory:.0f} MB")
    share = beside / alone
    return {
        f"the honest key keeps {100 * share:.0f} % of its throughput (at least {100 * TARGET:.0f} %)": share >= TARGET,
        "every honest request was answered": statuses.keys() == {200},
        "no traceback": not served.errors.read_text().count("Traceback"),
    }
