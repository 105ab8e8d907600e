"""The small server of pages: its headers, whom it answers, how it starts, and the fallback of signatures over http."""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount_protocol.errors import UsageError
from fleetcount_site import serving
from fleetcount_site.pages import RECORD_SCRIPTS, page
from playwright.sync_api import Browser
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tests.site.conftest import Visit


async def front(request: Request) -> Response:
    """Answer with an empty page that has the scripts of records."""
    return HTMLResponse(page("front", "<h1>Front</h1>", scripts=RECORD_SCRIPTS))


@contextlib.contextmanager
def served(*, local: bool = True) -> Iterator[int]:
    """Serve the page above on a free port until the end."""
    listener = serving.listen()
    running = serving.server(serving.secured([Route("/", front)], local=local))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        running.should_exit = True
        thread.join()
        listener.close()


def asked(port: int, path: str, host: str | None = None) -> http.client.HTTPResponse:
    """Ask for a path, under another name of the host if one is given."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_every_answer_has_the_headers() -> None:
    with served() as port:
        answers = [asked(port, path) for path in ("/", "/assets/map.js", "/assets/../serving.py", "/nothing")]

    assert [one.status for one in answers] == [200, 200, 404, 404]
    for answer in answers:
        for name, value in serving.HEADERS.items():
            assert answer.getheader(name) == value
        assert answer.getheader("server") is None
    assert "frame-ancestors 'none'" in serving.HEADERS["content-security-policy"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_host_is_not_answered(host: str) -> None:
    with served() as port:
        assert asked(port, "/", host or "x").status == 421
        assert asked(port, "/", f"localhost:{port}").status == 200


def test_requests_that_are_never_whole_keep_nobody_out_and_are_closed() -> None:
    with served() as port, contextlib.ExitStack() as stack:
        half = []
        for _ in range(300):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            half.append(one)
        again = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        again.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
        again.settimeout(30)
        assert again.recv(12) == b"HTTP/1.1 404"
        again.sendall(b"GET / HT")  # The next request of a connection has its time too.
        said = asked(port, "/").status

        assert said == 200
        for one in half:
            one.settimeout(30)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        with contextlib.suppress(ConnectionError):
            while again.recv(1000):
                pass


def test_a_port_that_is_taken_and_a_host_that_is_none_are_refused() -> None:
    with contextlib.closing(serving.listen()) as listener:
        port = int(listener.getsockname()[1])
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}"):
            serving.listen(port=port)
    with pytest.raises(UsageError, match="host is 'nowhere'"):
        serving.listen("nowhere")
    with pytest.raises(UsageError, match="port is 70000"):
        serving.listen(port=70_000)


VERIFY = """async ([key, signature, message]) => {
  const bytes = text => Uint8Array.from(text.match(/../g) || [], pair => parseInt(pair, 16));
  const flipped = text => (text[0] === '0' ? '1' : '0') + text.slice(1);
  const good = (k, s, m) => fleetcount.verifySignature(bytes(k), bytes(s), bytes(m));
  return {
    own: Boolean(window.crypto && crypto.subtle),
    all: [await good(key, signature, message), await good(flipped(key), signature, message),
          await good(key, flipped(signature), message), await good(key, signature, flipped(message))],
    digest: fleetcount.hex(await fleetcount.sha256(bytes('616263'))),
  };
}"""


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("name", ["127.0.0.1", "plain.test"])
def test_signatures_verify_with_and_without_a_secure_context(browser: Browser, name: str) -> None:
    key, message = Ed25519PrivateKey.generate(), b"FCRECD01 and what follows"
    given = [key.public_key().public_bytes_raw().hex(), key.sign(message).hex(), message.hex()]

    with served(local=False) as port, contextlib.ExitStack() as stack:
        chosen = browser
        if name != "127.0.0.1":  # A name that is not this machine's own has no secure context over http.
            rule = f"--host-resolver-rules=MAP {name} 127.0.0.1"
            chosen = browser.browser_type.launch(executable_path=_chromium(), args=["--no-sandbox", rule])
            stack.callback(chosen.close)
        visit = Visit(chosen, f"http://{name}:{port}/")
        found = visit.page.evaluate(VERIFY, given)

        assert visit.complaints == []
        visit.close()

    assert found["own"] is (name == "127.0.0.1")
    assert found["all"] == [True, False, False, False]
    assert found["digest"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def _chromium() -> str | None:
    import shutil

    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_a_socket_of_the_second_family_has_its_address_in_brackets(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        listener = serving.listen("::1")
    except UsageError:
        pytest.skip("this machine has no IPv6 address of its own")
    with contextlib.closing(listener):
        assert serving.address_of(listener).startswith("http://[::1]:")


_INTERRUPTED_AS_IT_IS_READY = """
import signal
from fleetcount_site import serving

def ready(address):
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)

listener = serving.listen()
try:
    serving.run(serving.secured([]), listener, ready)
except KeyboardInterrupt:
    print(listener.fileno())
"""


def test_the_address_is_said_once_an_interruption_ends_the_server_in_order() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AS_IT_IS_READY], capture_output=True, text=True, timeout=60, check=True
    )

    assert (done.stdout, done.stderr) == ("False\n-1\n", "")
