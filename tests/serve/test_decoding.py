"""Places for decoding: no client has all of them, and the memory for decoding is bounded."""

import asyncio
import io
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from PIL import Image

from crodobo.serve.decoding import BUDGET, OWN_PLACES, PLACES, TRANSPARENT, Decoders, Size, measure
from crodobo.serve.errors import Busy

LARGEST = 1000  # pixels


def run(work: Callable[[Decoders], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work(Decoders(LARGEST)), 30)

    return asyncio.run(limited())


class Users:
    """Clients that want to decode something, and those that have a place."""

    def __init__(self, decoders: Decoders) -> None:
        self.decoders, self.granted = decoders, list[str]()
        self.stack, self.tasks = AsyncExitStack(), list[asyncio.Task[None]]()
        self.end = asyncio.Event()

    async def ask(self, owner: str, memory: int = 0) -> None:
        async def hold() -> None:
            async with self.decoders.place(owner, memory, time.monotonic() + 30):
                self.granted.append(owner)
                await self.end.wait()

        self.tasks.append(asyncio.create_task(hold()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def finish(self) -> list[str]:
        self.end.set()
        await asyncio.gather(*self.tasks)
        return self.granted


def test_a_client_leaves_places_for_others_and_all_are_served_in_turns() -> None:
    async def work(decoders: Decoders) -> None:
        users = Users(decoders)
        for _ in range(6):
            await users.ask("shop")
        assert users.granted == ["shop"] * OWN_PLACES
        await users.ask("ward")
        assert users.granted[-1] == "ward", "a place was free for another client"
        for owner in ("ward", "ward", "port"):
            await users.ask(owner)
        assert len(users.granted) == PLACES
        found = await users.finish()
        assert found[PLACES] == "port", "the client that was served longest ago is next"
        assert sorted(found) == ["port"] + ["shop"] * 6 + ["ward"] * 3

    run(work)


def test_the_memory_for_decoding_is_bounded() -> None:
    largest = TRANSPARENT * LARGEST

    async def work(decoders: Decoders) -> None:
        users = Users(decoders)
        await users.ask("shop", largest)
        await users.ask("shop", 1)
        assert users.granted == ["shop"], "a client may decode one largest image at a time"
        await users.ask("ward", BUDGET * LARGEST - largest)
        assert users.granted == ["shop", "ward"]
        await users.ask("port", 2)
        assert users.granted == ["shop", "ward"], "the memory of all is used up"
        assert sorted(await users.finish()) == ["port", "shop", "shop", "ward"]
        assert decoders._used == 0

    run(work)


def test_a_client_that_waits_too_long_or_leaves_gives_up_its_turn() -> None:
    async def work(decoders: Decoders) -> None:
        users = Users(decoders)
        await users.ask("shop", TRANSPARENT * LARGEST)
        with pytest.raises(Busy, match="waiting to be decoded"):
            async with decoders.place("shop", 1, time.monotonic() + 0.01):
                pass
        await users.ask("shop", 1)
        gone = users.tasks.pop()
        gone.cancel()
        await asyncio.wait([gone])
        await users.ask("shop", 2)
        assert await users.finish() == ["shop", "shop"]

    run(work)


@pytest.mark.parametrize(("mode", "each"), [("P", 8), ("RGB", 8), ("I;16", 9), ("RGBA", 13)])
def test_an_image_is_measured_without_decoding_it(mode: str, each: int) -> None:
    file = io.BytesIO()
    Image.new(mode, (30, 20)).save(file, "PNG")
    assert measure(memoryview(file.getvalue()[:100])) == Size(600, 600 * each)
