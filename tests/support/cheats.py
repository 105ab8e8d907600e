"""A device that says whatever the test wants, over real connections: valid sessions, any shares, any bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fleetcount_client.transport import Transport
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_protocol.channel.certificates import key_digest
from fleetcount_protocol.channel.session import DeviceIdentity, SessionSecret, new_session, seal_instalment
from fleetcount_protocol.ids import ReportId, new_report_id
from fleetcount_protocol.messages import Instalment, Receipt, Refusal, SessionAccepted
from fleetcount_protocol.vdaf.prio3 import Prio3
from fleetcount_protocol.window.window import Window, context_of, prio3_for

from tests.support.deployment import Deployed
from tests.support.expiries import on_the_hour
from tests.support.fleet import identity_of, transport_of

Answers = list[Receipt | Refusal]


def unit(length: int, *hot: int, value: int = 1) -> list[int]:
    """Return a vector with `value` at the positions in `hot`."""
    return [value if position in hot else 0 for position in range(length)]


@dataclass
class Cheat:
    """One enrolled device that does not follow the protocol."""

    deployment: Deployed
    window: Window
    kind: str
    secrets: list[SessionSecret] = field(default_factory=list)
    nonce: bytes = b""

    def __post_init__(self) -> None:
        self.identity: DeviceIdentity = identity_of(self.deployment)
        self.nonce = self.nonce or self.new_name()
        self.transport: Transport = transport_of(self.deployment, self.identity, self.kind)
        self.rand = SystemRandom().random_bytes(self.prio3.rand_size)

    def new_name(self) -> bytes:
        """Return a name for a report of this device."""
        return bytes(new_report_id(self.window.window_id, key_digest(self.identity.certificate), SystemRandom()))

    @property
    def prio3(self) -> Prio3:
        """The window's proof system."""
        return prio3_for(self.window)

    async def open_sessions(self, expiry: int = 0) -> None:
        """Open one session with every aggregator, as an honest device would; by default until the window expires."""
        self.secrets.clear()
        for aggregator in self.deployment.written.aggregators:
            request, opening = new_session(
                aggregator,
                aggregator.hpke_keys[0],
                self.identity,
                expiry or on_the_hour(self.window.expiry),
                SystemRandom(),
            )
            (answer,) = await self.transport.open_sessions(aggregator, [request])
            assert isinstance(answer, SessionAccepted), answer
            self.secrets.append(opening.finish(answer))

    def shares(self, one: Sequence[int], two: Sequence[int]) -> tuple[bytes, tuple[bytes, ...]]:
        """Return public share and input shares of two vectors as they stand, valid or not, with an honest proof."""
        modulus = self.prio3.field.modulus
        elements = [value % modulus for value in (*one, *two)]
        return self.prio3.shard_encoded(context_of(self.window), elements, self.nonce, self.rand)

    def split(self, parts: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return the first and the second instalments of input shares."""
        words = 8 * (self.window.values + 1)
        splits = [words if position == 0 else 32 for position in range(len(parts))]
        pairs = list(zip(parts, splits, strict=True))
        return [part[:split] for part, split in pairs], [part[split:] for part, split in pairs]

    def seal(self, round_number: int, public_share: bytes, parts: Sequence[bytes]) -> list[Instalment]:
        """Return one sealed instalment an aggregator."""
        report_id = ReportId(self.nonce)
        return [
            seal_instalment(
                secret.window_key, self.window.window_id, report_id, round_number, position, public_share, part
            )
            for position, (secret, part) in enumerate(zip(self.secrets, parts, strict=True))
        ]

    async def send(self, instalments: Sequence[Instalment]) -> Answers:
        """Send each aggregator its instalment; return the answers."""
        answers: Answers = []
        for position, instalment in enumerate(instalments):
            # The window only says where to send to; what is sent may name any other.
            answers += await self.transport.upload(self.window, position, [instalment])
        return answers

    async def first(self, one: Sequence[int], two: Sequence[int]) -> Answers:
        """Send round one of two vectors."""
        return await self.send(self.seal(1, b"", self.split(self.shares(one, two)[1])[0]))

    async def second(self, one: Sequence[int], two: Sequence[int]) -> Answers:
        """Send round two of two vectors."""
        public_share, parts = self.shares(one, two)
        return await self.send(self.seal(2, public_share, self.split(parts)[1]))

    def changed(self, instalments: Sequence[Instalment], **fields: object) -> list[Instalment]:
        """Return the instalments with some fields replaced after sealing."""
        return [replace(one, **fields) for one in instalments]  # type: ignore[arg-type]  # the test names fields.
