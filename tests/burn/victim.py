"""A strict process that says what it does and waits for a line before it goes on. Run by test_same_user.py."""

import sys

from crodobo.burn.relaunch import relaunch

if __name__ == "__main__":
    relaunch()

SECRET = b"a private image that nobody may read"


def say(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


def main() -> None:
    say("launched")
    import torch

    from crodobo import CroDoBo, Source
    from crodobo.burn.levels import memory_for
    from crodobo.burn.proof import prove

    memory = memory_for("strict")
    method = CroDoBo(Source(torch.rand(16, 1, 16, 16), [0, 1] * 8), learners=1, warmup=1, warmup_batch=4, threads=1)
    prove(method, memory, 8)
    say("proved")
    held = memory.take(torch.frombuffer(bytearray(SECRET), dtype=torch.uint8).clone())
    say("private")
    memory.burn([held])


if __name__ == "__main__":
    main()
