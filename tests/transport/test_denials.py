"""The newest genuine list holds; older, foreign and broken ones change nothing, and an ended one says so."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.deny_list import sign_deny_list
from fleetcount_transport import denials as denials_module
from fleetcount_transport.denials import Denials, DenySource
from fleetcount_transport.toml_table import ConfigError

from tests.support.aggregators import START, device_authority
from tests.support.denials import denials_of, device_key, write_list
from tests.support.dripping import dripping

AUTHORITIES = [device_authority().certificate]


def test_without_a_source_nobody_is_denied_and_nothing_is_stale() -> None:
    denials = Denials.open(None, AUTHORITIES)

    assert not denials.denies(device_key(0))
    assert not denials.is_stale(1e12)


def test_a_list_denies_its_keys_until_a_newer_one_and_is_stale_from_its_end_on(tmp_path: Path) -> None:
    denials = denials_of(tmp_path / "deny-list", 1, expires=START + 10)

    assert [denials.denies(device_key(number)) for number in (0, 1)] == [False, True]
    assert [denials.is_stale(START + second) for second in (9, 10)] == [False, True]


async def test_a_new_file_is_taken_without_a_restart_and_an_older_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "deny-list"
    denials = denials_of(path, 1, number=5)

    for devices, number, wanted in (
        ((1, 2), 6, {1, 2}),
        ((), 4, {1, 2}),
        ((1, 2, 3), 6, {1, 2}),
        ((1, 2, 3), 7, {1, 2, 3}),
    ):
        write_list(path, *devices, number=number)
        await denials.poll()
        assert denials.keys == {bytes(device_key(device)) for device in wanted}


async def test_a_newer_list_that_lacks_a_revoked_key_is_refused_also_at_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deny-list"
    source = DenySource(file=write_list(path, 1, 2, number=5), kept=tmp_path / "kept")
    denials = Denials.open(source, AUTHORITIES)
    write_list(path, 2, 3, number=6)

    await denials.poll()

    assert denials.keys == {bytes(device_key(1)), bytes(device_key(2))}
    assert "number 6 that lacks 1 of the 2 keys of number 5" in "".join(capsys.readouterr())
    with pytest.raises(ConfigError, match="lacks 1 of the 2 keys"):
        Denials.open(source, AUTHORITIES)


def test_the_list_of_an_authority_that_replaces_another_begins_anew(tmp_path: Path) -> None:
    path, successor = tmp_path / "deny-list", CertificateAuthority.create("test devices")
    authorities = [*AUTHORITIES, successor.certificate]
    source = DenySource(file=write_list(path, 1, number=5), kept=tmp_path / "kept")
    Denials.open(source, authorities)
    path.write_bytes(sign_deny_list(successor, [], number=6, issued_at=START, expires=START + 9).encode())

    assert not Denials.open(source, authorities).keys


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
async def test_a_broken_or_missing_file_changes_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "deny-list"
    denials = denials_of(path, 1)
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    await denials.poll()

    assert denials.denies(device_key(1))


async def test_a_stranger_s_list_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deny-list"
    denials = denials_of(path, 1)
    stranger = CertificateAuthority.create("test devices")
    path.write_bytes(sign_deny_list(stranger, [], number=9, issued_at=START, expires=START + 9).encode())

    await denials.poll()

    assert denials.denies(device_key(1))


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_a_start_without_a_usable_file_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "deny-list"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"tls\.deny_list_file: "):
        Denials.open(DenySource(file=path), AUTHORITIES)


def test_a_list_does_not_go_back_over_a_restart(tmp_path: Path) -> None:
    path, kept = tmp_path / "deny-list", tmp_path / "kept"
    source = DenySource(file=write_list(path, 1, number=5), kept=kept)
    Denials.open(source, AUTHORITIES)
    write_list(path, number=4)

    with pytest.raises(ConfigError, match="number 4, allowed: above 5"):
        Denials.open(source, AUTHORITIES)

    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A web server of the files of a directory."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}/deny-list"
        running.shutdown()
        thread.join()


async def test_a_url_is_asked_again_and_may_be_away(tmp_path: Path, server: str) -> None:
    denials = Denials.open(DenySource(url=server), AUTHORITIES)
    before = denials.is_stale(START)
    write_list(tmp_path / "deny-list", 1)
    await denials.poll()

    assert before
    assert not denials.is_stale(START)
    assert denials.denies(device_key(1))
    (tmp_path / "deny-list").unlink()
    await denials.poll()
    assert denials.denies(device_key(1))


async def test_a_server_that_drips_is_complained_of_and_the_next_list_is_taken(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(denials_module, "_FETCH_S", 0.3)
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n") as (port, _):
        denials = Denials.open(DenySource(url=f"http://127.0.0.1:{port}/"), AUTHORITIES)
        await denials.poll()
    assert "no whole answer within 0.3 s" in "".join(capsys.readouterr())

    write_list(tmp_path / "deny-list", 1)
    denials._source = DenySource(url=server)
    monkeypatch.setattr(denials_module, "_FETCH_S", 30.0)
    await denials.poll()

    assert denials.denies(device_key(1))


async def test_a_list_from_the_future_is_not_taken_and_does_not_stand_in_the_way_of_the_true_one(
    tmp_path: Path,
) -> None:
    path, kept = tmp_path / "deny-list", tmp_path / "kept"
    source = DenySource(file=write_list(path, 1, number=5, issued_at=START + 300), kept=kept)
    denials = Denials.open(source, AUTHORITIES, lambda: START)
    for devices, number, issued_at, wanted in (((1, 2), 900, START + 301, {1}), ((1, 3), 6, START + 10, {1, 3})):
        write_list(path, *devices, number=number, issued_at=issued_at)
        await denials.poll()
        assert denials.keys == {bytes(device_key(device)) for device in wanted}

    write_list(path, 1, 2, 3, number=900, issued_at=START + 301)
    time = [float(START)]
    again = Denials.open(source, AUTHORITIES, lambda: time[0])
    assert again.keys == {bytes(device_key(device)) for device in (1, 3)}, (
        "a start under a late clock goes on with what was kept"
    )
    await again.poll()
    time[0] += 1
    await again.poll()
    assert again.keys == {bytes(device_key(device)) for device in (1, 2, 3)}, "the same file, once the clock is right"


def test_a_late_clock_does_not_bring_back_a_list_older_than_the_kept_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = tmp_path / "deny-list", tmp_path / "kept"
    source = DenySource(file=write_list(path, 1, number=5, issued_at=START), kept=kept)
    Denials.open(source, AUTHORITIES, lambda: START)
    newest, at = kept.read_bytes(), kept.stat()

    for clock in (START - 301, START - 300):
        again = Denials.open(source, AUTHORITIES, lambda clock=clock: clock)  # type: ignore[misc]
        assert again.denies(device_key(1))
        said = "".join(capsys.readouterr())
        assert ("kept_deny_list_from_the_future" in said) == (clock < START - 300)
        assert "deny_list_refused" not in said, "the source has the same list"

    write_list(path, number=4)
    with pytest.raises(ConfigError, match="number 4, allowed: above 5"):
        Denials.open(source, AUTHORITIES, lambda: START - 3800)

    assert kept.read_bytes() == newest
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (at.st_ino, at.st_mtime_ns), "no start writes it anew"


@pytest.mark.parametrize("by", ["damage", "a stranger"])
def test_a_kept_copy_that_cannot_be_used_is_said_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    source = DenySource(file=write_list(tmp_path / "deny-list", 1), kept=tmp_path / "kept")
    stranger = CertificateAuthority.create("test devices")
    foreign = sign_deny_list(stranger, [], number=9, issued_at=START, expires=START + 9).encode()
    (tmp_path / "kept").write_bytes(b"nonsense" if by == "damage" else foreign)

    denials = Denials.open(source, AUTHORITIES)

    assert denials.denies(device_key(1))
    assert "kept_deny_list_refused" in "".join(capsys.readouterr())
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "deny-list").read_bytes()
