"""A service in a process of its own, for the benchmarks that need one."""

import contextlib
import http.client
import json
import os
import socket
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
        """What the process says of errors."""
        return self.state.parent / "errors.txt"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def described(self) -> dict[str, Any]:
        """The model's metadata."""
        found: dict[str, Any] = json.loads(self.ask("GET", "/v2/models/crodobo")[1])
        return found

    def answered(self) -> int:
        """Queries that have been answered."""
        text = self.ask("GET", "/metrics")[1].decode()
        return int(
            float(next(line.split()[1] for line in text.splitlines() if line.startswith("crodobo_queries_total ")))
        )

    def memory(self) -> float:
        """Megabytes that the process has in memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20


@contextlib.contextmanager
def serving(state: Path, *options: str) -> Iterator[Serving]:
    """Start a service, wait until it is ready, and end it at the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "crodobo", "serve", "--port", str(port), "--state", str(state), *options]
    with (state.parent / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    served = Serving(process, port, state)
    try:
        while True:
            with contextlib.suppress(OSError):
                if served.ask("GET", "/v2/health/ready")[0] == 200:
                    break
            if process.poll() is not None:
                sys.exit(f"the service has not started: {served.errors.read_text()}")
            time.sleep(0.1)
        yield served
    finally:
        process.terminate()
        process.wait(timeout=120)
