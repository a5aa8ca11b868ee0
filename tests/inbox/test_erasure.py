"""A strict process that watches an inbox keeps neither pixels nor names of the files that it has predicted."""

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crodobo.burn.canary import Needle
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import scan

FILES = 12


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the memory of a hardened process")
def test_neither_pixels_nor_names_of_deleted_files_are_left(tmp_path: Path) -> None:
    random, needles = np.random.default_rng(), []
    for folder, count in (("public/a", 6), ("public/b", 6), ("inbox", 0)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(random.integers(0, 256, (20, 20), np.uint8)).save(tmp_path / folder / f"{number}.png")
    command = [sys.executable, "-m", "crodobo", "adapt", "--source", tmp_path / "public", "--inbox", tmp_path / "inbox"]
    command += ["--predictions", tmp_path / "predictions.csv", "--watch", "--query-size", "4", "--max-wait", "0.5"]
    command += ["--image-size", "16", "--grey", "--warmup", "1"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    try:
        prefix = secrets.token_hex(12)
        for number in range(FILES):
            values = random.integers(0, 2**16, (28, 30), np.uint16)
            values[0, 0] = 2**16 - 1
            path = tmp_path / "inbox" / f"{prefix}-{number}.png"
            Image.fromarray(values).save(path)
            needles += [
                Needle(np.round(row * (255 / 65535)).astype(np.uint8).tobytes(), "pixels") for row in values[::9]
            ]
        for _ in range(1200):
            assert process.poll() is None
            if not any((tmp_path / "inbox").glob("*.png")):
                break
            time.sleep(0.1)
        time.sleep(2)  # two scans of the empty inbox, and the receipt
        with closing(ProcessMemory.of(process.pid)) as memory:
            found = scan(memory, [*needles, Needle(prefix.encode(), "names")])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert (tmp_path / "predictions.csv").read_text().count(prefix) == FILES
    assert found.scanned > 10**8
    assert found.finds == []
