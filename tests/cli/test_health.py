"""`fleetcount health`, `status` and `doctor` ask a server that runs here for what it says of itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from fleetcount.run import health as health_module
from fleetcount.run.health import ask_page, waits_here
from fleetcount_aggregator.host.store_place import StorePlace
from fleetcount_aggregator.storage.opening import open_engine
from fleetcount_protocol.channel.certificates import (
    CertificateAuthority,
    Purpose,
    load_certificate,
    load_private_key,
    save_certificates,
    save_private_key,
)
from fleetcount_transport.operator_pages import Check, health_pages, json_page, serve_pages

from tests.support.connector import connector
from tests.support.dripping import dripping
from tests.support.listening import listening
from tests.support.postgres import Cluster

GOOD = Check(name="store", ok=True)
BAD = Check(name="peers", ok=False, reason="beta: unreachable since 40 s")
WINDOWS = [
    {
        "window": "ab" * 32,
        "name": "q",
        "state": "agreeing",
        "wait": {"text": "waits for beta since 40 s (unreachable)"},
    },
    {"window": "cd" * 32, "name": "r", "state": "agreeing", "wait": None},
]


@asynccontextmanager
async def server(directory: Path, checks: Sequence[Check]) -> AsyncIterator[Path]:
    """Serve the pages of a server; give the configuration that names them."""
    pages = {
        **health_pages(lambda: checks),
        "/windows": lambda _: json_page(
            HTTPStatus.OK, {"windows": WINDOWS, "more": False, "quarantined": {"ef" * 32: "x"}}
        ),
    }
    listening, port = await serve_pages("127.0.0.1:0", pages)
    path = directory / "relay.toml"
    path.write_text(f'[relay]\n[metrics]\nlisten = "127.0.0.1:{port}"\n')
    try:
        yield path
    finally:
        listening.close()


async def run(fleetcount: Callable[..., Any], *arguments: str | Path) -> Any:
    return await asyncio.to_thread(fleetcount, "health", "--config", *arguments)


async def test_it_lives_whether_it_is_ready_or_not(fleetcount: Callable[..., Any], tmp_path: Path) -> None:
    async with server(tmp_path, [GOOD, BAD]) as config:
        ran = await run(fleetcount, config)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(" lives\n")


async def test_not_ready_is_exit_code_one_with_every_reason(fleetcount: Callable[..., Any], tmp_path: Path) -> None:
    async with server(tmp_path, [GOOD, BAD]) as config:
        ran = await run(fleetcount, config, "--ready")
        without = await run(fleetcount, config, "--ready", "--exclude", "peers")
        unknown = await run(fleetcount, config, "--ready", "--exclude", "peer")

    assert ran.code == 1
    assert ran.out == "ok  store: fine\nNO  peers: beta: unreachable since 40 s\n"
    assert "is not ready" in ran.error_line
    assert (without.code, "NO  peers: beta: unreachable since 40 s (excluded)" in without.out) == (0, True)
    assert unknown.code == 2
    assert "exclude is 'peer'; allowed: store, peers" in unknown.error_line


async def test_nothing_that_answers_is_exit_code_four(fleetcount: Callable[..., Any], tmp_path: Path) -> None:
    async with server(tmp_path, []) as config:
        pass

    ran = await run(fleetcount, config)

    assert ran.code == 4
    assert "nothing of fleetcount answers at 127.0.0.1:" in ran.error_line


def test_a_configuration_without_a_page_and_an_exclusion_without_a_question_are_refused(
    fleetcount: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text("[relay]\n")

    ran = fleetcount("health", "--config", tmp_path / "a.toml")
    assert (ran.code, "has no [metrics]" in ran.error_line) == (2, True)
    ran = fleetcount("health", "--config", tmp_path / "a.toml", "--exclude", "peers")
    assert (ran.code, "allowed: with --ready" in ran.error_line) == (2, True)


async def test_a_variable_says_where_an_aggregator_has_its_pages(
    fleetcount: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETCOUNT_MQTT__INFLIGHT", "7")
    async with server(tmp_path, [GOOD]) as config:
        listen = config.read_text().partition('listen = "')[2].rstrip('"\n')
        monkeypatch.setenv("FLEETCOUNT_METRICS__LISTEN", listen)
        (tmp_path / "aggregator.toml").write_text("[aggregator]\n")
        ran = await run(fleetcount, tmp_path / "aggregator.toml", "--ready")

    assert ran.code == 0, ran.err


async def test_the_waits_of_a_running_aggregator_are_those_on_its_page(tmp_path: Path) -> None:
    async with server(tmp_path, [GOOD]) as config:
        listen = config.read_text().partition('listen = "')[2].rstrip('"\n')
        waits = await asyncio.to_thread(waits_here, listen)

    assert waits == {"ab" * 32: "waits for beta since 40 s (unreachable)", "ef" * 32: "in quarantine: x"}
    assert waits_here(listen) == {}
    assert ask_page("127.0.0.1:0", "/readyz", "ready") is None


async def test_what_answers_there_and_is_none_of_ours_is_nothing(tmp_path: Path) -> None:
    bodies = (("200 OK", "[]"), ("200 OK", '{"ok": 1}'), ("404 Not Found", '{"ready": 1}'), ("400 Bad Request", "?"))
    pages = [f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode() for status, body in bodies]
    for said in (*pages, b"SSH-2.0\r\n", b""):

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = said) -> None:
            writer.write(said)
            writer.close()

        async with listening(answer) as port:
            assert await asyncio.to_thread(ask_page, f"127.0.0.1:{port}", "/readyz", "ready") is None


async def test_doctor_asks_a_server_that_runs_and_speaks_json(
    fleetcount: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = await asyncio.to_thread(
        fleetcount, "keys", "init", "--output", "dep", "--base-port", "0", "--servers", "--broker", "localhost:8883"
    )
    assert made.code == 0, made.err
    config = tmp_path / "dep" / "relay" / "relay.toml"
    async with server(tmp_path, [GOOD, BAD]) as pages:
        listen = pages.read_text().partition('listen = "')[2].rstrip('"\n')
        config.write_text(config.read_text().replace("127.0.0.1:9431", listen))
        ran = await asyncio.to_thread(fleetcount, "doctor", "--config", config, "--json")

    found = {one["what"]: one for one in json.loads(ran.out)}
    assert ran.code == 1
    assert found["running server"] == {
        "what": "running server",
        "severity": "FAILED",
        "text": "peers: beta: unreachable since 40 s",
    }
    # Nobody listens where the relay's aggregators would be.
    failed = {name for name, one in found.items() if one["severity"] == "FAILED"}
    assert failed == {"running server", "aggregator alpha", "aggregator beta"}
    assert sorted(path.name for path in (tmp_path / "dep" / "broker").iterdir()) == [
        "broker.crt",
        "broker.key",
        "clients.crl",
        "clients.crt",
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "severity", "text"),
    [("", "ok", "synchronous_commit on"), ("-cdefault_transaction_read_only=on", "FAILED", "takes no writes")],
)
def test_doctor_asks_the_server_of_a_store_whether_it_may_hold_it(
    fleetcount: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres_cluster: Cluster,
    options: str,
    severity: str,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fleetcount("keys", "init", "--output", "dep", "--base-port", "0").code == 0
    config = tmp_path / "dep" / "alpha" / "aggregator.toml"
    url = postgres_cluster.url(options=options)
    config.write_text(f'{config.read_text()}\n[store]\nurl = "{url}"\n')

    ran = fleetcount("doctor", "--config", config, "--json")

    [found] = [one for one in json.loads(ran.out) if one["what"] == "store"]
    assert (found["severity"], text in found["text"]) == (severity, True), found
    assert "host=" not in found["text"]


@pytest.mark.processes
def test_doctor_says_which_slot_lacks_its_certificate_and_who_holds_which(
    fleetcount: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg (the extra fleetcount[postgres])")
    from fleetcount_aggregator.storage.slot_locks import SlotLocks

    monkeypatch.chdir(tmp_path)
    made = fleetcount("keys", "init", "--output", "dep", "--base-port", "0", "--broker", "localhost:1")
    assert made.code == 0, made.err
    config, keys = tmp_path / "dep" / "alpha" / "aggregator.toml", tmp_path / "dep" / "alpha" / "keys"
    files = 'certificate_file = "keys/aggregator.crt"\nkey_file = "keys/aggregator.key"\n'
    files = f'slots = 4\nca_file = "../ca/aggregators.crt"\n{files}'
    text = config.read_text().replace("[mqtt]\n", f"[mqtt]\n{files}")
    config.write_text(f'{text}\n[store]\nurl = "{postgres_url}"\n')
    authority = CertificateAuthority(
        certificate=load_certificate(tmp_path / "dep" / "ca" / "aggregators.crt"),
        private_key=load_private_key(tmp_path / "dep" / "ca" / "aggregators.key"),
    )
    for slot, name in ((1, "alpha-slot1"), (2, "alpha-slot1")):
        issued = authority.issue_new(Purpose.AGGREGATOR, name)
        save_certificates(keys / f"aggregator-slot{slot}.crt", [issued.certificate])
        save_private_key(keys / f"aggregator-slot{slot}.key", issued.private_key)

    def found() -> dict[str, tuple[str, str]]:
        ran = fleetcount("doctor", "--config", config, "--json")
        return {one["what"]: (one["severity"], one["text"]) for one in json.loads(ran.out)}

    before = found()
    open_engine(StorePlace(directory=tmp_path, url=postgres_url)).close()
    after = asyncio.run(held(SlotLocks(connector(postgres_url), 4), [0, 1, 3], found))

    assert before["certificate of slot 3"][0] == "FAILED"
    assert "aggregator-slot3.crt" in before["certificate of slot 3"][1]
    assert "`fleetcount pki slot`" in before["certificate of slot 3"][1]
    assert before["certificate of slot 2"] == (
        "FAILED",
        "aggregator-slot2.crt names 'alpha-slot1', needed: 'alpha-slot2', by which the broker's rules know the slot",
    )
    assert before["certificate aggregator-slot1.crt"][0] == "ok"
    assert before["slots at the broker"][0] == "note"
    assert before["slots at the broker"][1].startswith("0: nobody; 1: nobody")
    severity, text = after["slots at the broker"]
    assert severity == "note"
    here = "the machine of the server"
    assert text.startswith(f"0: {here}; 1: {here}; 2: nobody; 3: {here}")


async def held(locks: Any, slots: Sequence[int], found: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what is found while some slots are held."""
    assert all([await locks.take(slot) for slot in slots])
    try:
        return await asyncio.to_thread(found)
    finally:
        await locks.close()


def test_a_page_that_drips_is_left_at_the_deadline(
    fleetcount: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_WAIT_S", 0.3)
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n") as (port, _):
        (tmp_path / "relay.toml").write_text(f'[relay]\n[metrics]\nlisten = "127.0.0.1:{port}"\n')
        ran = fleetcount("health", "--config", tmp_path / "relay.toml")

    assert (ran.code, ran.error_line) == (4, f"fleetcount health: nothing of fleetcount answers at 127.0.0.1:{port}")
