"""A small deployment in memory for the client's tests: authority, aggregators, signed questions, devices."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fleetcount_client.charges import Charge
from fleetcount_client.config import DeliverySettings
from fleetcount_client.contact import TrustStore
from fleetcount_client.device import Device
from fleetcount_client.ledger import charges_of_question
from fleetcount_client.memory_transport import MemoryTransport
from fleetcount_client.policy import OwnerPolicy
from fleetcount_client.spool import SpoolFile
from fleetcount_client.timer import ManualTimer
from fleetcount_client.transport import Transport
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.certificates import CertificateAuthority
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.channel.session import DeviceIdentity
from fleetcount_protocol.ids import AggregatorId, Digest, ReportId, WindowId
from fleetcount_protocol.messages import QuestionOffer, ReleaseAnswer
from fleetcount_protocol.question.fields import Coin, Participants, Schedule
from fleetcount_protocol.question.key_list import KeyList, ListedKey, sign_key_list
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder, sign_order
from fleetcount_protocol.question.question import Question, SignedQuestion, sign_question, window_at
from fleetcount_protocol.window.domain import Categories
from fleetcount_protocol.window.fields import Aggregator, HpkeKey, Mode, Release, ReleaseKind, UploadStyle
from fleetcount_protocol.window.signing import TrustedAggregator
from fleetcount_protocol.window.window import Window, context_of, prio3_for

from tests.support.memory_aggregator import MemoryAggregator

START = 1_800_000_000
EVERY_FIVE_MINUTES = Schedule(
    first=START + 600, every_s=300, windows=4, round_one_s=100, round_two_s=100, expiry_s=1000
)
SIGNAL = "Vehicle.Powertrain.FuelSystem.Brand"
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")


@dataclass
class Deployment:
    """k aggregators with their keys, the authority of the devices, and a clock all share."""

    aggregators: int = 2
    timer: ManualTimer = field(default_factory=lambda: ManualTimer(START))
    authority: CertificateAuthority = field(default_factory=lambda: CertificateAuthority.create("test devices"))

    def __post_init__(self) -> None:
        names = [AggregatorId(name) for name in NAMES[: self.aggregators]]
        self.offers: list[QuestionOffer] = []
        self.releases: dict[WindowId, ReleaseAnswer] = {}
        self.signing_keys = {name: Ed25519PrivateKey.generate() for name in names}
        self.sealing_keys = {name: HpkeKeyPair.generate(key_id) for key_id, name in enumerate(names, start=1)}
        self.described = tuple(self._describe(number, name) for number, name in enumerate(names))
        self.intakes = {name: self._intake(name) for name in names}

    def _describe(self, number: int, name: AggregatorId) -> Aggregator:
        pair = self.sealing_keys[name]
        return Aggregator(
            aggregator_id=name,
            operator=f"Operator of {name}",
            grpc_endpoint=f"127.0.0.1:{7411 + number}",
            mqtt_broker="127.0.0.1:1884",
            hpke_keys=(HpkeKey(key_id=pair.key_id, public_key=pair.public_key),),
            signing_public_key=self.signing_keys[name].public_key().public_bytes(Encoding.Raw, PublicFormat.Raw),
        )

    def _intake(self, name: AggregatorId) -> MemoryAggregator:
        pair = self.sealing_keys[name]
        return MemoryAggregator(
            aggregator_id=name,
            key_pairs={pair.key_id: pair},
            authorities=[self.authority.certificate],
            clock=self.timer,
        )

    def question(self, **changes: object) -> Question:
        """Return four windows of 200 s, one every 300 s from START + 600 on, with some fields changed."""
        fields: dict[str, object] = {
            "name": "which brand, again and again",
            "deployment": "test",
            "signal": SIGNAL,
            "domain": Categories(names=("A", "B", "C")),
            "mode": Mode.SAMPLING,
            "mechanism": SamplingDie.uniform(Fraction(1, 4), 3),
            "schedule": EVERY_FIVE_MINUTES,
            "coin": Coin.WINDOW,
            "participants": Participants.HIDDEN,
            "delta": Fraction(1, 10**9),
            "release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20)),
            "upload_style": UploadStyle.TWO_INSTALMENTS,
            "time_precision_s": 1,
            "min_batch_size": 10,
            "aggregators": tuple(replace(one, hpke_keys=()) for one in self.described),
            "verify_seed_digest": Digest(hashlib.sha256(bytes(32)).digest()),
        }
        return Question(**(fields | changes))  # type: ignore[arg-type]

    def once(self, opens: int = START + 100, **changes: object) -> Question:
        """Return one window of 200 s, or of `round_one_s` + `round_two_s`, with some fields changed."""
        round_one_s, round_two_s = int(changes.pop("round_one_s", 100)), int(changes.pop("round_two_s", 100))  # type: ignore[call-overload]
        two_rounds = changes.get("mode", Mode.SAMPLING) is Mode.SAMPLING
        two_rounds &= changes.get("upload_style") is not UploadStyle.ONE_ENVELOPE
        schedule = Schedule(
            first=opens,
            every_s=round_one_s + round_two_s,
            windows=1,
            round_one_s=round_one_s,
            round_two_s=round_two_s if two_rounds else 0,
            expiry_s=700,
        )
        release = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(3, 2), level=Fraction(19, 20))
        return self.question(**{"name": "which brand", "schedule": schedule, "release": release} | changes)

    def window(self, **changes: object) -> Window:
        """Return one window (`once`)."""
        return window_at(self.once(**changes), 0)

    def ask(self, opens: int = START + 100, **changes: object) -> Window:
        """Offer one window (`once`) besides what is on offer, and return its window."""
        question = self.once(opens, **changes)
        self.offers.append(self.offer(question))
        return window_at(question, 0)

    def windows(self) -> dict[bytes, Window]:
        """Return the windows of what is on offer, by id."""
        asked = [one.signed.question for one in self.offers]
        windows = [window_at(question, index) for question in asked for index in range(question.schedule.windows)]
        return {window.window_id: window for window in windows}

    def offer(
        self, question: Question, *orders: QuestionOrder, lists: Mapping[str, KeyList] | None = None
    ) -> QuestionOffer:
        """Return the question signed by all, with a key list of each and these orders."""
        names = [one.aggregator_id for one in question.aggregators]
        signatures = tuple(sign_question(question, self.signing_keys[name]) for name in names)
        listed = [(lists or {}).get(name) or self.key_list(name) for name in names]
        given = sorted(orders, key=lambda one: (one.aggregator_id, one.number))
        return QuestionOffer(
            signed=SignedQuestion(question=question, signatures=signatures),
            key_lists=tuple(sign_key_list(one, self.signing_keys[one.aggregator_id]) for one in listed),
            orders=tuple(sign_order(one, self.signing_keys[one.aggregator_id]) for one in given),
        )

    def key_list(self, name: AggregatorId, not_before: int = 0, not_after: int = 2 * START) -> KeyList:
        """Return the list of an aggregator's one sealing key."""
        pair = self.sealing_keys[name]
        key = HpkeKey(key_id=pair.key_id, public_key=pair.public_key)
        return KeyList(
            aggregator_id=name,
            issued_at=int(min(START, self.timer.now())),  # The machine's time, where devices are processes.
            keys=(ListedKey(key=key, not_before=not_before, not_after=not_after),),
        )

    def order(self, question: Question, number: int, action: OrderAction, window: int, by: int = 0) -> QuestionOrder:
        """Return an order of the aggregator at position `by`, the leader by default."""
        return QuestionOrder(
            question_id=question.question_id,
            number=number,
            action=action,
            aggregator_id=self.described[by].aggregator_id,
            from_window=window,
        )

    def trust(self) -> TrustStore:
        """Return the trust in all aggregators."""
        return TrustStore(
            "test",
            [
                TrustedAggregator(
                    aggregator_id=one.aggregator_id,
                    operator=one.operator,
                    signing_public_key=one.signing_public_key,
                )
                for one in self.described
            ],
        )

    def transport(self, *offers: QuestionOffer) -> MemoryTransport:
        """Return a transport to all intakes, which offers these questions and those of `offers` at the time."""
        return MemoryTransport(self.intakes, lambda: (*offers, *self.offers), self.releases)

    def identity(self) -> DeviceIdentity:
        """Return a new device's identity."""
        return DeviceIdentity.generate(self.authority)

    def device(
        self,
        state_file: Path,
        transport: Transport,
        *,
        truth: object = "B",
        policy: OwnerPolicy | None = None,
        source: RandomSource | None = None,
        identity: DeviceIdentity | None = None,
        settings: DeliverySettings | None = None,
        **options: Any,
    ) -> Device:
        """Return a device whose signal reads `truth`."""
        return Device(
            identity=identity or self.identity(),
            trust=self.trust(),
            policy=policy or open_policy(),
            spool=SpoolFile(state_file, durable=False).device(),
            transport=transport,
            signals={SIGNAL: lambda: truth},  # type: ignore[dict-item,return-value]
            timer=self.timer,
            source=source,
            settings=settings,
            **options,
        )

    def report_ids(self, window: Window, round_number: int) -> set[ReportId]:
        """Return the reports complete at every aggregator for a round."""
        held = [
            {name[1] for name in intake.instalments if name[0] == window.window_id and name[2] == round_number}
            for intake in self.intakes.values()
        ]
        return set.intersection(*held)

    def decoded(self, window: Window, report_id: ReportId) -> list[int]:
        """Return the measurement a report's shares add up to, field element by field element: the oracle."""
        prio3 = prio3_for(window)
        length = prio3.circuit.measurement_length
        totals = [0] * length
        for position in range(len(window.aggregators)):
            share = self.input_share(window, report_id, position)
            if position == 0:
                words = prio3.field.decode_vector(share[: 8 * length], length)
            else:
                words = prio3.helper_measurement_share(context_of(window), position, share[:32])
            totals = [(total + word) % prio3.field.modulus for total, word in zip(totals, words, strict=True)]
        return totals

    def input_share(self, window: Window, report_id: ReportId, position: int) -> bytes:
        """Return the whole input share one aggregator received."""
        parts = self.intakes[window.aggregators[position].aggregator_id].parts
        whole = parts.get((window.window_id, report_id, 0))
        if whole is not None:
            return whole
        return parts[window.window_id, report_id, 1] + parts[window.window_id, report_id, 2]

    def verifies(self, window: Window, report_id: ReportId) -> list[int]:
        """Return the sum of the output shares of a report whose proof holds at every aggregator."""
        prio3, context, key = prio3_for(window), context_of(window), bytes(32)
        round_number = 2 if window.mode is Mode.SAMPLING and window.upload_style is UploadStyle.TWO_INSTALMENTS else 0
        name = (window.window_id, report_id, round_number)
        public_share = self.intakes[window.leader.aggregator_id].instalments[name].public_share
        inits = [
            prio3.verify_init(key, context, j, report_id, public_share, self.input_share(window, report_id, j))
            for j in range(len(window.aggregators))
        ]
        message = prio3.combine_verifier_shares(context, [share for _, share in inits])
        return prio3.aggregate([prio3.verify_next(context, state, message) for state, _ in inits])


def charge_of(question: Question, policy: OwnerPolicy) -> Charge:
    """Return what the one window of a question costs."""
    [charge] = charges_of_question(question, policy, 0, 0)
    return charge


def open_policy(**changes: object) -> OwnerPolicy:
    """Return a policy that allows the test windows at once."""
    fields: dict[str, object] = {
        "signals": frozenset({SIGNAL}),
        "largest_epsilon": Fraction(3),
        "largest_local_epsilon": Fraction(5),
        "fresh_ledger_wait_s": 0,
    }
    return OwnerPolicy(**(fields | changes))  # type: ignore[arg-type]
