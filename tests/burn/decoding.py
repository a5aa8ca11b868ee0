"""A strict process that decodes the files of a folder and hands over its memory. Run by test_decoding.py."""

import socket
import sys
from pathlib import Path

from crodobo.burn.relaunch import relaunch

if __name__ == "__main__":
    relaunch()

import torch

from crodobo.burn.hardening import harden
from crodobo.burn.levels import memory_for
from crodobo.data.decode import decode


def main() -> None:
    memory, own = memory_for("strict"), harden().memory
    for path in sorted(Path(sys.argv[1]).iterdir()):
        memory.burn([memory.take(torch.from_numpy(decode(path.read_bytes(), (3, 24, 24))))])
    with socket.socket(fileno=int(sys.argv[2])) as parent:
        socket.send_fds(parent, [b"decoded"], [own.maps, own.mem])
        parent.recv(1)


if __name__ == "__main__":
    main()
