"""Workers without processes."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class InlineWorkers:
    """Runs on the event loop itself."""

    @property
    def count(self) -> int:
        """See `Workers.count`."""
        return 1

    async def ready(self) -> None:
        """See `Workers.ready`."""

    async def run(self, function: Callable[..., Result], /, *arguments: object) -> Result:
        """See `Workers.run`."""
        await asyncio.sleep(0)
        return function(*arguments)

    async def close(self) -> None:
        """See `Workers.close`."""
