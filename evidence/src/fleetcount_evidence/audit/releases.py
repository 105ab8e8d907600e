"""Answers of one device and releases of its fleet, made by the code that devices and aggregators run.

The adversary knows the other devices' counts and can subtract them, so the fleet is this one device. It models
nothing: the die, the responses, the noise, the noised share and the opening are the deployed ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, cast

import numpy as np
from fleetcount_aggregator.release.noise import SystemNoise, noised_share
from fleetcount_client.answering import slot_of
from fleetcount_mechanisms.answers import AnswerForm, BitVectorResponse
from fleetcount_mechanisms.design import Design, Outputs
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import RandomSource, SystemRandom
from fleetcount_mechanisms.responses import RandomizedResponse
from fleetcount_mechanisms.sampling import SamplingDie, toss
from fleetcount_protocol.ids import AggregatorId, Digest, QuestionId, WindowId
from fleetcount_protocol.limits import COMMITMENT_BLIND_BYTES
from fleetcount_protocol.messages import NoisedShare
from fleetcount_protocol.release.commitments import open_noised_shares
from fleetcount_protocol.vdaf.field import FIELD64
from numpy.typing import NDArray

from fleetcount_evidence.audit.questions import AuditedDesign, DeviceTruth

Integers = NDArray[np.int64]

_WINDOW: Final = WindowId(bytes(WindowId.SIZE))
_QUESTION: Final = QuestionId(bytes(QuestionId.SIZE))
_DIGEST: Final = Digest(bytes(Digest.SIZE))
_BLIND: Final = bytes(COMMITMENT_BLIND_BYTES)
_BLOCK: Final = 1 << 16
SECRET_BYTES: Final = 32
"""The size of the secret from which a device derives its window."""


class Noise(Protocol):
    """A source of an aggregator's noise."""

    def draw(self, law: NoiseLaw, count: int) -> list[int]:
        """Return `count` independent draws."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """The data of n releases, of which every adversary sees a part; whole numbers are int64.

    messages is (n, m), the answers in the device's messages; sampled is (n,), always True for a design without
    sampling; opened is (n, c), the released numbers; noises is (k, n, c), the noise of each aggregator; slots is (n,),
    the window in which the device answered, of which messages, numbers and noises are: every aggregator sees it.
    """

    messages: Integers
    sampled: NDArray[np.bool_]
    opened: Integers
    noises: Integers
    slots: Integers

    def only(self, numbers: Sequence[int]) -> "Seen":
        """Return the same releases with only these opened numbers, by index from 0."""
        return replace(self, opened=self.opened[:, numbers], noises=self.noises[:, :, numbers])


def draw_releases(question: AuditedDesign, truth: DeviceTruth, count: int) -> Seen:
    """Return `count` releases of a fleet whose one unknown device has this truth, with the system's randomness.

    Of one window of several the device has it in each of them and a new secret for every trial; the release is that of
    its own window, since the numbers of the others do not depend on it.
    """
    design, source, coins = question.design, SystemRandom(), SystemBlocks()
    slots = _slots(question.one_in, count, coins)
    messages, sampled = device_messages(design, truth, count, coins)
    totals = _contributions(design, messages)
    noise = SystemNoise(source)
    if question.one_a_call:
        parts = [release(design, row[None, :], noise, source) for row in totals]
        opened = np.concatenate([part[0] for part in parts])
        noises = np.concatenate([part[1] for part in parts], axis=1)
    else:
        opened, noises = release(design, totals, noise, source)
    return Seen(messages=messages, sampled=sampled, opened=opened, noises=noises, slots=slots)


def _slots(one_in: int, count: int, source: RandomSource) -> Integers:
    if one_in == 1:
        return np.zeros(count, dtype=np.int64)
    drawn = [slot_of(source.random_bytes(SECRET_BYTES), _QUESTION, one_in) for _ in range(count)]
    return np.array(drawn, dtype=np.int64)


class SystemBlocks:
    """The system's randomness, read in blocks: one process tosses the coins of a hundred thousand devices a second."""

    def __init__(self) -> None:
        self._block, self._used = b"", 0

    def random_bytes(self, count: int, /) -> bytes:
        """See `RandomSource.random_bytes`; every byte is handed out once."""
        if self._used + count > len(self._block):
            self._block, self._used = SystemRandom.random_bytes(max(_BLOCK, count)), 0
        self._used += count
        return self._block[self._used - count : self._used]


def device_messages(
    design: Design, truth: DeviceTruth, count: int, source: RandomSource
) -> tuple[Integers, NDArray[np.bool_]]:
    """Return `count` answers of a device with this truth, (count, m) int64, and whether each was sampled, (count,)."""
    sampled = np.ones(count, dtype=bool)
    position = truth.index(1) + 1 if any(truth) else 0
    if design.form is AnswerForm.BITS:
        bits = cast("BitVectorResponse", design.answer)
        return np.array([bits.randomize_bits(truth, source) for _ in range(count)], dtype=np.int64), sampled
    if design.form is AnswerForm.TWO_ROUNDS:
        die = cast("SamplingDie", design.answer)
        tossed = np.array([toss(die, position, source) for _ in range(count)], dtype=np.int64)
        return tossed[:, :2], tossed[:, 2] == 1
    if design.form is AnswerForm.POSITION:
        response = cast("RandomizedResponse", design.answer)
        drawn = [response.randomize(position, source) for _ in range(count)]
        return np.array(drawn, dtype=np.int64)[:, None], sampled
    if design.levels.most > 1:
        return np.tile(np.array(truth, dtype=np.int64), (count, 1)), sampled
    return np.full((count, 1), position, dtype=np.int64), sampled


def _contributions(design: Design, messages: Integers) -> Integers:
    """Return what each answer adds to the opened numbers, before shares and noise: (n, c) int64."""
    if design.outputs is Outputs.PARTICIPATION:
        return np.concatenate([np.ones((len(messages), 1), dtype=np.int64), messages], axis=1)
    if design.levels.most > 1:
        holders = messages.max(axis=1, keepdims=True)
        return np.concatenate([messages, holders], axis=1) if design.levels.total else messages
    every = np.eye(design.values + 1, dtype=np.int64)[:, 0 if design.outputs is Outputs.ALL else 1 :]
    # `opened_sums` is linear, and aggregators apply the same sums to their shares: the rows can be added up.
    table = np.array([design.opened_sums(row) for row in every.tolist()], dtype=np.int64)
    added = table[messages[:, -1]]
    return np.asarray(added - table[messages[:, 0]] if design.rounds == 2 else added)


def release(design: Design, totals: Integers, noise: Noise, source: RandomSource) -> tuple[Integers, Integers]:
    """Return the opened numbers of releases, and the noises of all aggregators, by one call of each deployed step.

    `totals` is (n, c) int64, the sums before noise; the results are (n, c) and (k, n, c) int64.
    """
    flat = [int(total) % FIELD64.modulus for total in totals.ravel().tolist()]
    noises = [_level_noises(design, len(totals), noise) for _ in range(design.aggregators)]
    opened = open_noised_shares(
        [
            NoisedShare(
                window_id=_WINDOW,
                aggregator_id=AggregatorId(f"a{place}"),
                set_digest=_DIGEST,
                vector=noised_share(share, drawn),
                blind=_BLIND,
            )
            for place, (share, drawn) in enumerate(zip(_shares(flat, design.aggregators, source), noises, strict=True))
        ],
        len(flat),
    )
    shape = totals.shape
    drawn = np.array(noises, dtype=np.int64).reshape(design.aggregators, *shape)
    return np.array(opened, dtype=np.int64).reshape(shape), drawn


def _level_noises(design: Design, releases: int, noise: Noise) -> list[int]:
    """Return one aggregator's noise on every number of so many releases, release by release."""
    drawn = [
        np.array(noise.draw(law, releases * count), dtype=np.int64).reshape(releases, count)
        for law, count in design.opened_noise
    ]
    flat: list[int] = np.concatenate(drawn, axis=1).ravel().tolist()
    return flat


def _shares(totals: Sequence[int], aggregators: int, source: RandomSource) -> list[list[int]]:
    """Return additive shares of field elements: all but the last are uniform."""
    uniform = [_field_elements(len(totals), source) for _ in range(aggregators - 1)]
    last = list(totals)
    for share in uniform:
        last = FIELD64.subtract_vectors(last, share)
    return [*uniform, last]


def _field_elements(count: int, source: RandomSource) -> list[int]:
    words = np.frombuffer(source.random_bytes(8 * count), dtype=np.uint64)
    kept: list[int] = words[words < np.uint64(FIELD64.modulus)].tolist()
    return kept if len(kept) == count else [*kept, *_field_elements(count - len(kept), source)]
