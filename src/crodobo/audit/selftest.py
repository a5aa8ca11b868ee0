"""Self-test: does burning leave nothing on this machine? Starts processes that burn test queries, and searches them."""

import contextlib
import dataclasses
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable

from crodobo.audit.probe_process import ProbeCase
from crodobo.audit.report import Report
from crodobo.burn.canary import Canary
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import Scan, scan
from crodobo.errors import CrodoboError

CONV, MLP, TRANSFORMER = "small", "resmlp_12_224", "vit_tiny_patch16_224"
UNSEEN = (
    "Features, gradients and weights: they contain none of an image's own values.",
    "Memory of the graphics card and of the kernel, swap, and disks.",
    "Other networks: every strict start searches for a test query with its own network.",
)


def cases(queries: int, *, full: bool) -> list[ProbeCase]:
    """Strict cases, which must leave nothing, and one without burning, in which the search must find something."""
    learners = [(1, False), (2, False), (2, True), (4, False), (4, True)] if full else [(2, True)]  # number, parallel
    strict = [ProbeCase(network, *each) for network in (CONV, MLP, TRANSFORMER) for each in learners]
    for way in (True, False) if full else (True,):
        strict += [ProbeCase(parallel=way, end="after an exception"), ProbeCase(parallel=way, end="after Ctrl-C")]
    return [dataclasses.replace(case, queries=queries) for case in (*strict, ProbeCase(burn="off"))]


def self_test(chosen: list[ProbeCase], note: Callable[[str], None] = lambda text: None) -> Report:
    """Run the cases one after the other."""
    report = Report(unseen=list(UNSEEN))
    for number, case in enumerate(chosen, start=1):
        note(f"{number} of {len(chosen)}: {case}")
        result = search(case)
        note(f"  {result.found} bytes found")
        forms = sorted({find.form for find in result.finds})
        report.checked.append(
            f"{case}: {result.found} bytes of a test query in {result.scanned / 2**20:.0f} MB of memory"
            + (f" ({'; '.join(forms)})." if forms else ".")
        )
        if case.burn == "strict":
            report.found += [f"{case}: {find}." for find in result.finds]
        elif case.burn == "off" and not result.finds:
            report.found.append(f"{case}: nothing was found, so the search itself does not work.")
    return report


def search(case: ProbeCase) -> Scan:
    """Start a probe process, let it burn canaries, and search its memory."""
    seed = secrets.token_hex(16)
    here, there = socket.socketpair()
    with here, there:
        arguments = [json.dumps(dataclasses.asdict(case)), seed, str(there.fileno())]
        command = [sys.executable, "-m", "crodobo.audit.probe_process", *arguments]
        with subprocess.Popen(command, pass_fds=(there.fileno(),)) as process:
            there.close()
            answer, files, _, _ = socket.recv_fds(here, 2**16, 2)
            if not answer:
                raise CrodoboError(f"The probe process failed ({case}).", "Its own message is printed above.")
            scaling = json.loads(answer)
            try:
                with contextlib.closing(ProcessMemory(*files)) as memory:
                    return scan(memory, Canary(seed).needles(case.channels, **scaling))
            finally:
                process.kill()
