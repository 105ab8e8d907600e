"""A stranger is waited for to one deadline and one size, whatever it sends, and keeps no process from ending."""

import asyncio
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from fleetcount_transport import strangers
from fleetcount_transport.strangers import Answer, NoAnswerError, Unfinished, ask, in_daemon_thread

from tests.support.dripping import dripping
from tests.support.processes import wait_until

BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nX: "
STATUS = b"HT"


@pytest.mark.parametrize("start", [BODY, HEAD, STATUS, b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_server_that_drips_is_left_at_the_deadline_wherever_it_is(start: bytes) -> None:
    began = time.monotonic()
    with dripping(start) as (port, open_now):
        with pytest.raises(NoAnswerError, match=r"no whole answer within 0\.3 s"):
            ask(f"http://127.0.0.1:{port}/", total_s=0.3, most_bytes=1 << 20)

        assert 0.3 <= time.monotonic() - began < 5
        wait_until(lambda: not open_now, "the connection is cut")


@pytest.fixture
def server() -> Iterator[str]:
    """A web server: /N has N bytes, /away is elsewhere, /round goes round, /none does not exist."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            where = {"away": "/5", "round": "/round", "file": "file:///etc/hostname"}.get(name)
            if where is not None:
                self.send_response(302)
                self.send_header("Location", where)
                self.end_headers()
                return
            self.send_response(503 if name == "none" else 200)
            self.end_headers()
            self.wfile.write(b"no" if name == "none" else b"x" * int(name))

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_an_answer_has_its_status_and_at_most_its_size(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)

    def said(path: str) -> Answer:
        return ask(f"{server}/{path}", total_s=30, most_bytes=5, direct=True)

    assert said("5") == said("away") == Answer(status=200, content=b"xxxxx")
    assert said("none") == Answer(status=503, content=b"no")
    with pytest.raises(NoAnswerError, match="more than 5 bytes"):
        said("6")
    for path in ("round", "file"):
        assert said(path).status == 302
    with pytest.raises(NoAnswerError, match="Connection refused"):
        ask(f"{server}/5", total_s=30, most_bytes=5)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[/", "http://:x/", "ftp://127.0.0.1/", "nothing"])
def test_what_cannot_be_asked_is_no_answer(url: str) -> None:
    with pytest.raises(NoAnswerError, match=r"."):
        ask(url, total_s=30, most_bytes=5, direct=True)


async def test_what_is_done_apart_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    assert await in_daemon_thread(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(fail)


ENDS = """
import asyncio, threading
from fleetcount_transport.strangers import in_daemon_thread

async def main():
    task = asyncio.ensure_future(in_daemon_thread(threading.Event().wait))
    await asyncio.sleep(0)
    task.cancel()

asyncio.run(main())
print("ended")
"""


@pytest.mark.processes
def test_a_process_ends_though_a_stranger_is_waited_for() -> None:
    ran = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout == "ended\n"


async def test_the_oldest_unfinished_connection_makes_room_and_each_has_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers, "_UNFINISHED_S", 0.05)
    closed: list[str] = []
    waiting, late = Unfinished(2), asyncio.Event()

    def close(name: str) -> Callable[[], None]:
        return lambda: closed.append(name)

    for name in ("a", "b", "a", "c"):
        waiting.begin(name, close(name))
    assert closed == ["a"]
    waiting.end("b")
    waiting.begin("d", late.set)
    assert closed == ["a"]
    await asyncio.wait_for(late.wait(), 30)
    assert closed == ["a", "c"]
