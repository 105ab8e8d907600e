"""How to wait on a stranger: a whole exchange has one deadline and one size, and no thread keeps a process from ending.

A time limit of a socket is for one read: who sends a byte now and then is waited for without end.
"""

import asyncio
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_UNFINISHED: Final = 128
_UNFINISHED_S: Final = 5.0
"""Seconds in which a client of a page sends the head of its request."""


class NoAnswerError(OSError):
    """A stranger did not answer in time and size; the text says why, without the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said: the status of HTTP, and the content."""

    status: int
    content: bytes


def ask(url: str, *, total_s: float, most_bytes: int, direct: bool = False) -> Answer:
    """Return what an http or https server answers to a GET of a URL, errors of HTTP included.

    Redirections are followed, within the same deadline. `total_s` counts from the look-up of the name to the last byte.
    `direct` asks no proxy that the environment names.

    Raises:
        NoAnswerError: nothing answers, not in time, with more than `most_bytes` of content, or not in HTTP.
    """
    exchange = _Exchange(total_s, most_bytes, direct=direct)
    threading.Thread(target=exchange.run, args=(url,), name="ask", daemon=True).start()
    if not exchange.is_over.wait(total_s):
        exchange.cut()
        raise NoAnswerError(f"no whole answer within {total_s:g} s")
    if exchange.answer is None:
        raise NoAnswerError(exchange.fault)
    return exchange.answer


async def in_daemon_thread(work: Callable[[], _T]) -> _T:
    """Return what a call gives or raises, from a thread that does not keep the process from ending.

    The threads of `asyncio.to_thread` are waited for at the end of a process.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def finish(found: _T | None, error: BaseException | None) -> None:
        if done.done():  # Its caller waits no more.
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(found)  # type: ignore[arg-type]

    def run() -> None:
        try:
            ended = partial(finish, work(), None)
        except Exception as error:
            ended = partial(finish, None, error)
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(ended)

    threading.Thread(target=run, name="in-daemon-thread", daemon=True).start()
    return await done


class Unfinished:
    """The connections of a server that wait for their client: each for five seconds, and the oldest makes room.

    Anyone who opens many connections and sends nothing has the older of them closed. A request that is sent at once is
    whole before `most` further connections came.
    """

    def __init__(self, most: int = _UNFINISHED) -> None:
        self._most = most
        self._waiting: dict[object, tuple[Callable[[], None], asyncio.TimerHandle]] = {}

    def begin(self, connection: object, close: Callable[[], None]) -> None:
        """Wait for the client of a connection, which `close` closes at once; nothing changes if it waits already."""
        if connection in self._waiting:
            return
        while len(self._waiting) >= self._most:
            self._close(next(iter(self._waiting)))
        clock = asyncio.get_running_loop().call_later(_UNFINISHED_S, self._close, connection)
        self._waiting[connection] = close, clock

    def end(self, connection: object) -> None:
        """Note that what was waited for has come, or the connection is gone."""
        if connection in self._waiting:
            _, clock = self._waiting.pop(connection)
            clock.cancel()

    def _close(self, connection: object) -> None:
        close, _ = self._waiting[connection]
        self.end(connection)
        close()


class _Exchange:
    """One question to a server, made in a thread; `cut` ends it from another."""

    def __init__(self, total_s: float, most_bytes: int, *, direct: bool) -> None:
        self.is_over = threading.Event()
        self.answer: Answer | None = None
        self.fault = ""
        self._total_s = total_s
        self._most_bytes = most_bytes
        self._direct = direct
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    def run(self, url: str) -> None:
        """Ask, and note the answer or what is wrong."""
        try:
            self.answer = self._asked(url)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            self.fault = str(getattr(reason, "strerror", None) or reason) or type(reason).__name__
        except Exception as error:
            self.fault = type(error).__name__
        finally:
            self.is_over.set()

    def cut(self) -> None:
        """End the exchange: whatever the thread waits for comes to its end."""
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _opened(self, opened: socket.socket) -> None:
        with self._lock:
            self._socket = opened
            if self._is_cut:
                raise NoAnswerError("cut")

    def _asked(self, url: str) -> Answer:
        answer: Any
        try:
            answer = self._opener().open(url, timeout=self._total_s)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content: bytes = answer.read(self._most_bytes + 1)
            if len(content) > self._most_bytes:
                raise NoAnswerError(f"more than {self._most_bytes} bytes")
            return Answer(status=int(answer.status), content=content)

    def _opener(self) -> urllib.request.OpenerDirector:
        opener = urllib.request.OpenerDirector()
        for one in (
            urllib.request.ProxyHandler({} if self._direct else None),
            _Handler(self._opened),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            opener.add_handler(one)
        return opener


class _Handler(urllib.request.HTTPSHandler):
    """Opens the connections of http and https, and tells of each socket: whoever has it can end the exchange."""

    def __init__(self, opened: Callable[[socket.socket], None]) -> None:
        super().__init__()
        self._told = opened

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an http URL."""
        return self.do_open(partial(self._connection, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an https URL."""
        return self.do_open(partial(self._connection, http.client.HTTPSConnection), req)

    http_request = urllib.request.AbstractHTTPHandler.do_request_
    https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _connection(self, kind: Callable[..., Any], host: str, **how: Any) -> Any:
        connection = kind(host, **how)
        connect = connection.connect

        def told() -> None:
            connect()
            self._told(connection.sock)

        connection.connect = told
        return connection
