"""Question for tests, built from a few seeds so that the same call gives the same thing. Keys here protect nothing."""

import hashlib
from dataclasses import replace
from fractions import Fraction
from typing import Any

from fleetcount_mechanisms.responses import KaryResponse
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.channel.hpke import HpkeKeyPair
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.question.fields import Coin, DrillDown, Participants, Schedule, Submission
from fleetcount_protocol.question.key_list import KeyList, ListedKey
from fleetcount_protocol.question.orders import OrderAction, QuestionOrder
from fleetcount_protocol.question.question import Question, SignedQuestion, sign_question, window_at
from fleetcount_protocol.release.record import NoisedParticipants, ReleaseRecord
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import Bins, Categories, Numbers, Outside, Prefixes, SquareGrid
from fleetcount_protocol.window.fields import HpkeKey, Mode, Release, ReleaseKind, UploadStyle
from fleetcount_protocol.window.frame import Frame

from tests.support.protocol_samples import aggregator, at_zooms, crossed, key_pair, record, seed_bytes, signing_key

SEED = seed_bytes("verify seed")
"""What the verify keys of every sample's windows are derived from."""
FIRST = 20_820 * 86_400
"""A midnight in UTC."""
HOURLY = Schedule(first=FIRST, every_s=3_600, windows=720, round_one_s=600, round_two_s=600, expiry_s=86_400)

DAILY = Schedule(first=FIRST, every_s=86_400, windows=7, round_one_s=3_600, round_two_s=0, expiry_s=3_600)
LATEST = FIRST + 10 * 86_400
SUBMITTED = replace(HOURLY, first=None, submission=Submission(delay_s=20, earliest=FIRST, latest=LATEST))
"""Counted from submission: it starts within ten days."""
GEOMETRIC = Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 2), level=Fraction(19, 20))

GAUSSIAN = Release(
    kind=ReleaseKind.GAUSSIAN, noise_epsilon=None, noise_variance=Fraction(1321, 2), level=Fraction(19, 20)
)

ONE_SIDED = Release(
    kind=ReleaseKind.ONE_SIDED, noise_epsilon=Fraction(1, 10), level=Fraction(19, 20), thresholds=(3, 0, 8)
)


def sampling_question(parties: int = 2, **changes: Any) -> Question:
    """Return a month of hourly two-round maps over a grid of six squares, with the named fields changed."""
    fields: dict[str, Any] = {
        "name": "Where are you now?",
        "deployment": "bologna",
        "signal": "Vehicle.CurrentLocation",
        "domain": SquareGrid(x0=Fraction(-5, 2), y0=Fraction(0), size=Fraction(250), columns=3, rows=2),
        "mode": Mode.SAMPLING,
        "mechanism": SamplingDie.uniform(Fraction(1, 2), 6, allow_large_rate=True),
        "schedule": HOURLY,
        "coin": Coin.WINDOW,
        "participants": Participants.HIDDEN,
        "delta": Fraction(1, 10**9),
        "release": Release(kind=ReleaseKind.GEOMETRIC, noise_epsilon=Fraction(1, 20), level=Fraction(19, 20)),
        "upload_style": UploadStyle.TWO_INSTALMENTS,
        "time_precision_s": 60,
        "min_batch_size": 10,
        "aggregators": tuple(aggregator(position) for position in range(parties)),
        "verify_seed_digest": Digest(hashlib.sha256(SEED).digest()),
    }
    return Question(**(fields | changes))


def submitted_question(parties: int = 2, **changes: Any) -> Question:
    """Return the month of `sampling_question` counted from its submission, not started, with the named fields
    changed.
    """
    return sampling_question(parties, **({"schedule": SUBMITTED} | changes))


def one_round_question(mode: Mode, **changes: Any) -> Question:
    """Return a week of daily one-round counts of three categories, with the named fields changed."""
    fields: dict[str, Any] = {
        "domain": Categories(names=("rot", "grün", "blå")),
        "signal": "Vehicle.Category",
        "mode": mode,
        "mechanism": KaryResponse(Fraction(1, 2), 3) if mode is Mode.RESPONSE else None,
        "schedule": DAILY,
    }
    return sampling_question(**(fields | changes))


def drill_down_question(mode: Mode = Mode.SAMPLING, **changes: Any) -> Question:
    """Return two walks over three levels of 3, 5 and 12 bits, with the named fields changed."""
    fields: dict[str, Any] = {
        "domain": Prefixes(bits=3, cells=(1, 2, 5, 7)),
        "drill_down": DrillDown(levels=(3, 5, 12), threshold=40, most_survivors=3),
    }
    if mode is Mode.DIRECT:
        fields["schedule"] = replace(DAILY, windows=6)
        return one_round_question(mode, **(fields | changes))
    fields["mechanism"] = SamplingDie.uniform(Fraction(1, 2), 4, allow_large_rate=True)
    fields["schedule"] = replace(HOURLY, windows=6)
    return sampling_question(**(fields | changes))


def every_question() -> dict[str, Question]:
    """Return one question of every mode, coin and kind of participants."""
    envelope = replace(HOURLY, round_two_s=0, windows=8_784)
    return {
        "sampling_window": sampling_question(),
        "sampling_day": sampling_question(3, coin=Coin.DAY, participants=Participants.NOISED),
        "sampling_question": sampling_question(coin=Coin.QUESTION, schedule=replace(HOURLY, windows=1)),
        "sampling_envelope": sampling_question(upload_style=UploadStyle.ONE_ENVELOPE, schedule=envelope),
        "sampling_framed": sampling_question(
            domain=SquareGrid(
                x0=Fraction(0),
                y0=Fraction(0),
                size=Fraction(250),
                columns=3,
                rows=2,
                frame=Frame(epsg=3857, offset_x="0", offset_y="-0.5"),
            )
        ),
        "direct": one_round_question(Mode.DIRECT, participants=Participants.NOISED),
        "response": one_round_question(Mode.RESPONSE),
        "one_sided": one_round_question(Mode.DIRECT, release=ONE_SIDED),
        "drill_down": drill_down_question(),
        "codes": drill_down_question(
            Mode.DIRECT,
            domain=Prefixes(bits=3, cells=(1, 2, 5, 7), codes=Codes(form=CodeForm.DTC_24)),
            signal="Vehicle.Diagnostics.DTCList",
        ),
        "one_in": one_round_question(Mode.RESPONSE, schedule=replace(DAILY, windows=60), one_in=30),
        "number": sampling_question(
            domain=Numbers(low=Fraction(-40), high=Fraction(85, 2), values=6, unit="celsius", outside=Outside.NONE),
            signal="Vehicle.Exterior.AirTemperature",
            release=GAUSSIAN,
            coin=Coin.DAY,
        ),
        "cross": one_round_question(
            Mode.DIRECT,
            signal="Vehicle.Speed",
            domain=crossed(
                Bins(edges=(Fraction(0), Fraction(50)), open_above=True, unit="km/h"), Categories(names=("a", "b", "c"))
            ),
            release=GAUSSIAN,
        ),
        "gaussian": sampling_question(release=GAUSSIAN, coin=Coin.DAY),
        "zooms": sampling_question(
            domain=SquareGrid(x0=Fraction(0), y0=Fraction(0), size=Fraction(250), columns=4, rows=2),
            mechanism=SamplingDie.uniform(Fraction(1, 2), 8, allow_large_rate=True),
            release=at_zooms(GAUSSIAN, 2),
            participants=Participants.NOISED,
        ),
    }


def sign_everywhere(question: Question) -> SignedQuestion:
    """Return the question with the signatures of all its aggregators."""
    signatures = tuple(sign_question(question, signing_key(position)) for position in range(len(question.aggregators)))
    return SignedQuestion(question=question, signatures=signatures)


def key_list(position: int = 0, **changes: Any) -> KeyList:
    """Return a key list of an aggregator with two keys, the second from the tenth day of the samples on."""
    pairs = (key_pair(position), HpkeKeyPair(position + 101, seed_bytes(f"later {position}")))
    starts = (FIRST - 86_400, FIRST + 10 * 86_400)
    keys = tuple(
        ListedKey(
            key=HpkeKey(key_id=pair.key_id, public_key=pair.public_key),
            not_before=start,
            not_after=start + 21 * 86_400,
        )
        for pair, start in zip(pairs, starts, strict=True)
    )
    fields: dict[str, Any] = {
        "aggregator_id": aggregator(position).aggregator_id,
        "issued_at": FIRST - 86_400,
        "keys": keys,
    }
    return KeyList(**(fields | changes))


def order(question: Question, number: int, action: OrderAction, from_window: int, position: int = 0) -> QuestionOrder:
    """Return an order of the aggregator at `position` about the question."""
    return QuestionOrder(
        question_id=question.question_id,
        number=number,
        action=action,
        aggregator_id=question.aggregators[position].aggregator_id,
        from_window=from_window,
    )


def start_order(question: Question, start: int, position: int = 0) -> QuestionOrder:
    """Return the start of a question by the aggregator at `position`: the leader's is the one that counts."""
    made = order(question, 1, OrderAction.PAUSE, 0, position)
    return replace(made, action=OrderAction.START, start=start)


def window_record(question: Question, index: int, **changes: Any) -> ReleaseRecord:
    """Return a record of a window, the first of its question, with made-up numbers and the named fields changed."""
    window = window_at(question, index)
    noised = question.participants is Participants.NOISED
    fields = {"participants": NoisedParticipants(raw=-3, low=10, high=41) if noised else None}
    return record(window, **(fields | changes))
