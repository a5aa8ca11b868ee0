"""A process for strict burning that decodes files, drops what they were, and waits. Run by test_more_formats.py."""

import sys
from pathlib import Path

from crodobo.burn.relaunch import relaunch

if __name__ == "__main__":
    relaunch()

import threading

from crodobo.data.decode import decode


def decode_all() -> None:
    for name in sys.argv[1:]:
        pixels = decode(Path(name).read_bytes(), (3, 16, 16))
        pixels[:] = 0


if __name__ == "__main__":
    thread = threading.Thread(target=decode_all)  # as the inbox does
    thread.start()
    thread.join()
    decode_all()
    print("done", flush=True)
    sys.stdin.readline()
