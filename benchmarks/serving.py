"""A service in its own process, for the benchmarks that need one."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Serving:
    """A service that is ready."""

    process: subprocess.Popen[bytes]
    port: int
    state: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def errors(self) -> Path:
        """The standard error of the process."""
        return self.state.parent / "errors.txt"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def described(self, **headers: str) -> dict[str, Any]:
        """The model's metadata."""
        found: dict[str, Any] = json.loads(self.ask("GET", "/v2/models/crodobo", None, **headers)[1])
        return found

    def answered(self) -> int:
        """The number of answered queries."""
        text = self.ask("GET", "/metrics")[1].decode()
        return int(
            float(next(line.split()[1] for line in text.splitlines() if line.startswith("crodobo_queries_total ")))
        )

    def memory(self) -> float:
        """The resident memory of the process, in megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20


@contextlib.contextmanager
def serving(state: Path, *options: str) -> Iterator[Serving]:
    """Start a service, wait until it is ready, and stop it at the end of the block."""
    command = [sys.executable, "-m", "crodobo", "serve", "--port", "0", "--state", str(state), *options]
    output, errors = state.parent / "output.txt", state.parent / "errors.txt"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
    served = Serving(process, 0, state)
    try:
        while not (served.port and served.ask("GET", "/v2/health/ready")[0] == 200):
            if process.poll() is not None:
                sys.exit(f"The service did not start: {errors.read_text()}")
            if found := re.search(r"istening on \S+:(\d+)", output.read_text()):
                served = Serving(process, int(found[1]), state)
            time.sleep(0.1)
        yield served
    finally:
        process.terminate()
        process.wait(timeout=120)
