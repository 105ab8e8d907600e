"""An embedder reads whom its device reaches, what comes next and why it is silent; nobody answering is logged once."""

import asyncio
import logging
from pathlib import Path

import pytest
from fleetcount_client.contact import SILENT_AFTER_S, Contacts
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.timer import ManualTimer
from fleetcount_client.transport import LISTS, Unreachable
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.messages import QuestionOffer

from tests.client.deployment import SIGNAL, START, Deployment, open_policy


class Cut(MemoryTransport):
    """Nobody answers."""

    async def list_questions(self) -> tuple[QuestionOffer, ...]:
        raise Unreachable("broker b:1883: refused: nothing listens there")


async def test_a_device_says_whom_it_reached_and_what_it_does_next(tmp_path: Path) -> None:
    world = Deployment()
    window = world.ask(name="speeds")
    device = world.device(tmp_path / "device.db", world.transport())
    before = device.status()
    seen = []

    def read() -> str:
        seen.append(device.status())
        return "B"

    await device.answer({SIGNAL: read})
    after = device.status()

    assert (before.why_silent, before.contacts, before.next_window) == ("nobody has been asked yet", (), "")
    assert [(one.next_window, one.next_at, one.why_silent) for one in seen] == [("speeds", seen[0].now, "")]
    assert {one.party for one in after.contacts} == {LISTS, *(one.aggregator_id for one in window.aggregators)}
    assert all(one.last_heard is not None and not one.trouble for one in after.contacts)
    assert (after.next_window, after.silent_since, after.why_silent) == ("", None, "nothing is on offer")
    assert "'B'" not in repr(seen)


def test_each_reason_for_which_nobody_answers_is_told_once() -> None:
    contacts = Contacts(ManualTimer(START))
    for party, trouble in (("alpha", "b: refused"), ("beta", "a: refused"), (LISTS, "b: refused; a: refused")):
        contacts.note(party, trouble)

    assert contacts.troubles() == "a: refused; b: refused"


async def test_silence_has_its_reason(tmp_path: Path) -> None:
    world = Deployment()
    cut = world.device(tmp_path / "cut.db", Cut({}))
    waiting = world.device(tmp_path / "new.db", world.transport(), policy=open_policy(fresh_ledger_wait_s=10**8))
    refusing = world.device(
        tmp_path / "refusing.db",
        world.transport(world.offer(world.once(name="speeds"))),
        policy=open_policy(signals=()),
    )
    with pytest.raises(Unreachable):
        await cut.answer()
    await waiting.answer()
    await refusing.answer()
    restarted = world.device(tmp_path / "refusing.db", world.transport(), policy=open_policy(signals=()))

    assert "nobody answers: broker b:1883: refused" in cut.status().why_silent
    assert cut.status().silent_since is not None
    assert cut.spool.age(START + 10**6, None).created_at == START + 10**6, "to look began the ledger"
    assert "ledger" in waiting.status().why_silent
    assert "speeds was refused: the window asks for" in refusing.status().why_silent
    assert restarted.status().why_silent == refusing.status().why_silent


async def test_a_certificate_that_has_ended_is_why_a_device_is_silent(tmp_path: Path) -> None:
    world = Deployment()
    device = world.device(tmp_path / "device.db", world.transport(), policy=open_policy(fresh_ledger_wait_s=10**8))
    ends = device._identity.certificate.not_valid_after_utc.timestamp()

    world.timer.advance(ends - world.timer.now())
    assert "a new ledger answers nothing" in device.status().why_silent
    world.timer.advance(1)
    assert device.status().why_silent == f"its certificate ended {utc_text(ends)}"


async def test_a_waiting_window_is_named_with_its_time(tmp_path: Path) -> None:
    world = Deployment()
    window = world.ask(name="speeds")
    device = world.device(tmp_path / "device.db", world.transport())
    answering = asyncio.create_task(device.answer())
    while not device.status().next_window:
        await asyncio.sleep(0)
    status = device.status()
    answering.cancel()
    await asyncio.wait([answering])

    assert (status.next_window, status.next_at) == ("speeds", window.round_one_opens)


def test_nobody_answering_is_logged_once_and_so_is_the_return(caplog: pytest.LogCaptureFixture) -> None:
    timer = ManualTimer(0)
    contacts = Contacts(timer)

    with caplog.at_level(logging.WARNING, "fleetcount_client"):
        contacts.note("alpha", "refused")
        timer.advance(SILENT_AFTER_S - 1)
        contacts.note("alpha", "refused")
        assert caplog.messages == []
        timer.advance(1)
        for _ in range(3):
            contacts.note("beta", "timed out")
        contacts.note("alpha")
        contacts.note("alpha")

    assert caplog.messages == [
        "nobody has answered for 300 s, it goes on trying: refused; timed out",
        "somebody answers again after 300 s: alpha",
    ]


def test_one_who_answers_ends_the_silence(caplog: pytest.LogCaptureFixture) -> None:
    timer = ManualTimer(0)
    contacts = Contacts(timer)
    for _ in range(9):
        contacts.note("alpha", "refused")
        contacts.note("beta")
        timer.advance(SILENT_AFTER_S)

    assert contacts.silent_since is None
    assert caplog.messages == []
