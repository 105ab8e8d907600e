"""The latest statement on each subject, with ascending ids, sent to a limited number of pages.

A statement is complete and replaces the one before on its subject. So the history has at most one statement per
subject, and a page that connects late or again gets only those it does not have. The board must not know the meaning
of a statement.
"""

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MOST_SUBJECTS: Final = 64
MOST_READERS: Final = 32
"""Pages that follow at once; each has a connection open."""


class BoardFullError(Exception):
    """`MOST_READERS` pages follow already; one must be closed before another can follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    number: int
    subject: str
    content: str = field(repr=False)


@dataclass(slots=True, eq=False)
class _Reader:
    loop: asyncio.AbstractEventLoop
    news: asyncio.Event


class Board:
    """The latest statement on each subject. Any thread may call `state`; readers are coroutines of any loop.

    An id is "RUN-NUMBER". RUN is drawn anew for every board, so that a page of an earlier run gets everything.
    """

    def __init__(self) -> None:
        self._run = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._latest: dict[str, _Statement] = {}
        self._readers: list[_Reader] = []
        self._number = 0
        self._closed = False

    def state(self, subject: str, content: Mapping[str, Any]) -> None:
        """Publish the latest statement on a subject, as JSON; do nothing after `close`.

        The first word of `subject` is the name of the event.

        Raises:
            ValueError: more than `MOST_SUBJECTS` subjects, or a subject that is not printable ASCII.
        """
        if not subject.isascii() or not subject.isprintable():
            raise ValueError(f"subject is {subject[:40]!a}, allowed: printable ASCII")
        # JSON on one line: a line break would end the data field of a server-sent event.
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
        with self._lock:
            if self._closed:
                return
            if subject not in self._latest and len(self._latest) == MOST_SUBJECTS:
                raise ValueError(f"subject {subject!r} is one more than {MOST_SUBJECTS}, the most of a board")
            self._number += 1
            self._latest[subject] = _Statement(number=self._number, subject=subject, content=text)
        self._wake()

    def close(self) -> None:
        """End every reader after it has got the statements so far."""
        with self._lock:
            self._closed = True
        self._wake()

    @property
    def readers(self) -> int:
        """How many pages follow."""
        with self._lock:
            return len(self._readers)

    async def follow(self, last_id: str = "") -> AsyncIterator[str]:
        """Yield statements as server-sent events, oldest first: those after `last_id`, then each new one.

        Raises:
            BoardFullError: `MOST_READERS` follow already.
        """
        reader = _Reader(loop=asyncio.get_running_loop(), news=asyncio.Event())
        with self._lock:
            if len(self._readers) >= MOST_READERS:
                raise BoardFullError(f"{MOST_READERS} pages follow already; close one")
            self._readers.append(reader)
        last = self._number_of(last_id)
        try:
            yield "retry: 1000\n\n"
            while True:
                reader.news.clear()
                with self._lock:
                    ended = self._closed
                    new = sorted(
                        (one for one in self._latest.values() if one.number > last), key=lambda one: one.number
                    )
                for one in new:
                    kind = one.subject.partition(" ")[0]
                    yield f"id: {self._run}-{one.number}\nevent: {kind}\ndata: {one.content}\n\n"
                    last = one.number
                if ended:
                    return
                await reader.news.wait()
        finally:
            with self._lock:
                self._readers.remove(reader)

    def _number_of(self, last_id: str) -> int:
        """Return the number of the last statement that a reader has; 0 for an id of another run, or one never given."""
        run, _, number = last_id.partition("-")
        known = run == self._run and number.isascii() and number.isdigit() and len(number) <= 18
        return min(int(number), self._number) if known else 0

    def _wake(self) -> None:
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            try:
                reader.loop.call_soon_threadsafe(reader.news.set)
            except RuntimeError:  # Its loop has ended; so has the reader.
                continue
