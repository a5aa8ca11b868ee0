"""A service in operation: what it says at its start, log rotation, a closed terminal, and its sockets."""

import asyncio
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crodobo.serve.keys import add_key
from crodobo.serve.server import Address, listen
from crodobo.session.events import Log

if TYPE_CHECKING:
    from conftest import Serve

Command = Callable[..., dict[str, Any]]


def events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_sighup_reopens_the_log_and_the_service_goes_on(serve: "Serve", tmp_path: Path) -> None:
    log, old = tmp_path / "log.jsonl", tmp_path / "log.jsonl.1"
    with serve(tmp_path / "state", "--log", str(log)) as server:
        server.predict(server.images())
        log.rename(old)
        server.process.send_signal(signal.SIGHUP)
        server.wait_until(log.exists)
        assert server.predict(server.images())[0] == 200
        status, out, _ = server.end()
    assert status == 0
    assert "The keys were read again, and the event log was reopened." in out
    assert events(old)[-1] == "query"
    assert {"query", "ended"} <= set(events(log))


def test_a_log_that_cannot_be_reopened_goes_on(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "logs" / "log.jsonl"
    with Log(path) as log:
        path.rename(tmp_path / "old.jsonl")
        path.parent.rmdir()
        path.parent.touch()  # a file, where the folder of the log was
        log.reopen()
        log.write("paused", query=1)
    assert events(tmp_path / "old.jsonl") == ["paused"]
    assert "Events go on to the old file." in capsys.readouterr().err


def test_a_closed_terminal_stops_the_service_in_order(serve_command: Command, tmp_path: Path) -> None:
    ours, terminal = pty.openpty()
    log = tmp_path / "log.jsonl"
    process = subprocess.Popen(**serve_command(tmp_path / "state", "--log", str(log)), stdout=terminal, stderr=terminal)
    os.close(terminal)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        with os.fdopen(ours, "rb", buffering=0) as output:
            said = b""
            while b"Ready: images can be sent to" not in said:
                said += output.read(4096)
        process.send_signal(signal.SIGHUP)  # the terminal itself sends it only to the leader of a session
        assert process.wait(60) == 0
    finally:
        watchdog.cancel()
        process.kill()
    assert events(log)[-1] == "ended"


def test_events_on_standard_output_are_not_mixed_with_text(serve_command: Command, tmp_path: Path) -> None:
    """The service also warns of a network without TLS, and says when and where it is ready."""
    key = add_key(tmp_path / "keys.json", "shop", "client")
    options = ("--log", "-", "--host", "0.0.0.0", "--keys", str(tmp_path / "keys.json"))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = serve_command(tmp_path / "state", *options)
    with subprocess.Popen(**command, **pipes, cwd=tmp_path, text=True) as process:
        assert process.stderr
        watchdog = threading.Timer(60, process.kill)  # instead of a test that never ends
        watchdog.start()
        said = ""
        while not (ready := re.search(r"Ready: images can be sent to http://0\.0\.0\.0:(\d+)\.", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        address = f"http://127.0.0.1:{ready[1]}/v1/predict"
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/octet-stream"}
        urllib.request.urlopen(urllib.request.Request(address, bytes(8 * 256), headers)).close()
        process.terminate()
        out, errors = process.communicate(timeout=60)
        watchdog.cancel()
    assert said.count("WARNING: without TLS, keys and images cross the network unencrypted (see --tls-cert).") == 1
    assert "Stopped in order after 1 query." in errors
    assert {"started", "query", "ended"} <= {json.loads(line)["event"] for line in out.splitlines()}
    assert not (tmp_path / "-").exists()


def test_answers_are_sent_without_delay() -> None:
    """Otherwise an answer on an open connection waits 40 ms for the client's acknowledgement."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made: socket.socket = writer.get_extra_info("socket")
            found.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen(Address(port=0))
        async with await asyncio.start_server(accepted, sock=listener):
            with socket.create_connection(listener.getsockname()):
                return await asyncio.wait_for(found, 10)

    assert asyncio.run(option()) != 0
