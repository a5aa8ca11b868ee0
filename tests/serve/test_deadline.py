"""A request that waits for too long is told to come again, unless its images are being learned: then it is answered."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import torch

from crodobo.core.memory import Memory
from crodobo.serve.batcher import Control, Gatherer
from crodobo.serve.errors import Refused
from crodobo.serve.service import Service


class Slow(SimpleNamespace):
    """A service whose queries take longer than a request may wait."""

    memory, failure = Memory(), None

    def answer(self, *_: Any) -> Any:
        time.sleep(0.3)
        return SimpleNamespace(seconds=0.3, saved=None)


def test_only_a_request_whose_turn_has_not_come_may_be_sent_again() -> None:
    async def statuses() -> list[Any]:
        gatherer = Gatherer(cast(Service, Slow()), size=1, max_wait=0, limit=2, deadline=0.1)
        gatherer.start()
        image = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
        waits = [gatherer.submit(image, Control()) for _ in range(2)]
        found = await asyncio.gather(*waits, return_exceptions=True)
        await gatherer.close()
        return [each.status if isinstance(each, Refused) else (each.start, each.stop) for each in found]  # type: ignore[union-attr]

    assert asyncio.run(statuses()) == [(0, 1), 503]
