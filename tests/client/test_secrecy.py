"""No truth, coin, key or ciphertext appears in a repr, a log line, an exception or an outcome."""

import logging
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from fleetcount_client.answering import draw_two_round, round_one_parts, round_two_parts
from fleetcount_client.contact import OutcomeKind
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.private_places import Circle, PrivatePlaces, PrivateSignal
from fleetcount_client.transport import Unreachable
from fleetcount_mechanisms.randomness import SeededRandom
from fleetcount_protocol.channel.chain import WindowKey, next_key, window_key
from fleetcount_protocol.channel.session import unseal_instalment
from fleetcount_protocol.errors import SealError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.messages import Instalment, Receipt, Refusal
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import UploadStyle
from fleetcount_protocol.window.window import Window

from tests.attack.suite import FIGURE
from tests.client.deployment import SIGNAL, Deployment, open_policy
from tests.support.protocol_samples import session_secret

DEVICE = Digest(bytes(32))

CANARY = "CanaryTruthQ7"


class Failing(MemoryTransport):
    """Fails every third upload, so that the paths of errors are logged too."""

    count = 0

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        self.count += 1
        if self.count % 3 == 0:
            raise Unreachable("lost")
        return await super().upload(window, position, instalments)


async def test_a_whole_answer_leaves_no_trace_of_the_truth_at_debug_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Deployment()
    window = world.ask(domain=Categories(names=("A", CANARY, "C")))
    transport = Failing(world.intakes, lambda: world.offers)
    device = world.device(tmp_path / "device.db", transport, truth=CANARY)
    names = [name for name in window.domain.names if name == CANARY]  # type: ignore[union-attr]
    assert names == [CANARY]

    with caplog.at_level(logging.DEBUG):
        outcomes = await device.answer()
    stored = device.spool.reports()
    sessions = device.spool.sessions()
    said = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("fleetcount"))
    shown = repr((outcomes, stored, sessions, device, device.spool))

    assert "no receipt yet" in said
    for text in (said, shown):
        assert CANARY not in text
        for session in sessions:
            assert session.secret.hex() not in text
            assert repr(session.secret) not in text


def test_what_an_owner_keeps_private_does_not_show_itself() -> None:
    home = Circle(x=Fraction(686200), y=Fraction(4929100), radius=Fraction(300))

    shown = repr(PrivatePlaces({SIGNAL: PrivateSignal(areas=(home,), values=frozenset({686200}))}))

    assert SIGNAL in shown
    assert "686200" not in shown


def test_neither_coins_nor_parts_show_themselves() -> None:
    window = Deployment().window()

    for seed in range(20):
        secret = draw_two_round(window, 2, (session_secret().window_key,), SeededRandom(seed), device=DEVICE)
        parts = (round_one_parts(window, secret), round_two_parts(window, secret))
        assert repr(secret) == (f"TwoRoundSecret(report_id={secret.report_id!r}, keys={secret.keys!r})")
        assert secret.keys[0].key.hex() not in repr(secret)
        assert repr(secret.keys[0].key) not in repr(secret)
        assert all("parts=" not in repr(one) for one in parts)


async def test_only_the_owner_finds_the_coins_and_only_between_the_rounds(tmp_path: Path) -> None:
    world = Deployment()
    window = world.ask()
    device = world.device(tmp_path / "device.db", world.transport())

    await device.answer()
    await device.close()
    report_ids = world.report_ids(window, 2)

    disk = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert all(report_id not in disk for report_id in report_ids)
    assert device.spool.charges()[0].charge_id in disk  # The ledger's row stays.


class Recorder(MemoryTransport):
    """Keeps what it carries, as a broker can, and what lay on the device's disk at each message."""

    def __init__(self, directory: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.directory = directory
        self.carried: list[tuple[int, Instalment]] = []
        self.opened_under_way: list[int] = []

    async def upload(
        self, window: Window, position: int, instalments: Sequence[Instalment]
    ) -> tuple[Receipt | Refusal, ...]:
        self.carried += [(position, one) for one in instalments]
        self.opened_under_way.append(opened_by_a_thief(self.directory, self.carried))
        return await super().upload(window, position, instalments)


@lru_cache(maxsize=1 << 20)
def derived(found: bytes) -> tuple[bytes, ...]:
    """Return what 32 bytes may be good for: a file has most of them still at the next look."""
    return found, window_key(found), window_key(next_key(found))


def opened_by_a_thief(directory: Path, carried: Sequence[tuple[int, Instalment]]) -> int:
    """Return how many recorded messages open under any 32 bytes of any file: as a window key or as a key of the
    chain.
    """
    content = b"\n".join(path.read_bytes() for path in directory.iterdir())
    found = {content[at : at + 32] for at in range(len(content) - 31) if b"\0\0" not in content[at : at + 32]}
    keys = {one for key in found for one in derived(key)}
    return sum(any(opens(key, position, one) for key in keys) for position, one in carried)


@lru_cache(maxsize=1 << 20)
def opens(key: bytes, position: int, instalment: Instalment) -> bool:
    try:
        unseal_instalment(
            WindowKey(session_id=instalment.session_id, number=instalment.key_number, key=key), position, instalment
        )
    except SealError:
        return False
    return True


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_stolen_file_and_a_recording_open_nothing_that_was_delivered(
    tmp_path: Path, rounds: int, record_property: Callable[[str, str], None]
) -> None:
    """The file as it lies there after the last receipt, with the program still running and nothing closed."""
    world = Deployment()
    whole = UploadStyle.TWO_INSTALMENTS if rounds == 2 else UploadStyle.ONE_ENVELOPE
    for name in ("one", "another"):
        world.ask(name=name, upload_style=whole)
    (tmp_path / "state").mkdir()
    transport = Recorder(tmp_path / "state", world.intakes, lambda: world.offers)
    policy = open_policy(largest_epsilon=Fraction(9), total_epsilon=Fraction(20))
    device = world.device(tmp_path / "state" / "device.db", transport, policy=policy, idle_close_s=math.inf)

    outcomes = await device.answer()

    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DELIVERED] * 2
    assert len(transport.carried) == 4 * rounds
    if rounds == 2:
        assert transport.opened_under_way[0] == 1, "the thief's search finds what is there"
    assert opened_by_a_thief(tmp_path / "state", transport.carried) == 0
    sessions = {one.session_id for _, one in transport.carried}
    assert {row.session_id for row in device.spool.sessions()} == sessions, "which go on, and their receipt keys"
    assert {row.number for row in device.spool.sessions()} == {3}
    record_property(FIGURE, f"a device's file: 0 of {len(transport.carried)} messages")
