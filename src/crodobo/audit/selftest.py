"""Does burning leave nothing on this machine? Processes that meet canaries, each searched from outside."""

import dataclasses
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable

from crodobo.audit.probe_process import Case
from crodobo.audit.report import Report
from crodobo.burn.canary import Canary
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import Scan, scan
from crodobo.errors import CrodoboError

CONV, MLP, TRANSFORMER = "small", "resmlp_12_224", "vit_tiny_patch16_224"
UNSEEN = (
    "what was made of an image so that none of its values is left: features, gradients, the weights",
    "memory of the graphics card, of the kernel, and what was written to swap or to a disk",
    "other networks than these: every strict start searches for a test query with its own",
)


def cases(queries: int, *, full: bool) -> list[Case]:
    """Strict ones, which must leave nothing, and one without burning, in which the search must find something."""
    if full:
        ways = [(1, False), (2, False), (2, True), (4, False), (4, True)]
        strict = [Case(network, count, way) for network in (CONV, MLP, TRANSFORMER) for count, way in ways]
    else:
        strict = [Case(network) for network in (CONV, MLP, TRANSFORMER)]
    broken = [Case(end="after an exception"), Case(end="after Ctrl-C")]
    if full:
        broken += [dataclasses.replace(case, parallel=False) for case in broken]
    return [dataclasses.replace(case, queries=queries) for case in (*strict, *broken, Case(burn="off"))]


def self_test(chosen: list[Case], note: Callable[[str], None] = lambda text: None) -> Report:
    """Run the cases one after the other."""
    report = Report(unseen=list(UNSEEN))
    for number, case in enumerate(chosen, start=1):
        note(f"{number} of {len(chosen)}: {case}")
        result = search(case)
        where = f"{result.scanned / 2**20:.0f} MB of memory"
        forms = sorted({find.form for find in result.finds})
        text = f"{case}: {result.found} bytes of a test query in {where}" + (f" ({'; '.join(forms)})" if forms else "")
        note(f"  {result.found} bytes found")
        report.checked.append(text)
        if case.burn == "strict":
            report.found += [f"{case}: {find}" for find in result.finds]
        elif case.burn == "off" and not result.finds:
            report.found.append(f"{case}: nothing was found, so the search does not see what it should")
    return report


def search(case: Case) -> Scan:
    """Start a process, let it meet canaries, and search it."""
    seed = secrets.token_hex(16)
    here, there = socket.socketpair()
    with here, there:
        arguments = [json.dumps(dataclasses.asdict(case)), seed, str(there.fileno())]
        command = [sys.executable, "-m", "crodobo.audit.probe_process", *arguments]
        with subprocess.Popen(command, pass_fds=(there.fileno(),)) as process:
            there.close()
            answer, files, _, _ = socket.recv_fds(here, 2**16, 2)
            if not answer:
                raise CrodoboError(f"the process to be searched has failed ({case}); it has said why above")
            memory, scaling = ProcessMemory(*files), json.loads(answer)
            try:
                return scan(memory, Canary(seed).needles(case.channels, scaling["mean"], scaling["std"]))
            finally:
                memory.close()
                process.kill()
