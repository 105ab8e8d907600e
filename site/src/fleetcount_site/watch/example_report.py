"""One vehicle's answer to the demo's question, split anew for every reader: the view of each party.

It runs in the demo's process, which knows the truth. Splitting and sealing are the device's own code; the coins are the
operating system's. The report is for the page and is not sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleetcount_client.answering import (
    ReportParts,
    TwoRoundSecret,
    draw_two_round,
    one_round_parts,
    round_one_parts,
    round_two_parts,
    truth_of,
)
from fleetcount_client.signals import Reading
from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.randomness import RandomSource
from fleetcount_protocol.channel.chain import WindowKey
from fleetcount_protocol.channel.session import seal_instalment
from fleetcount_protocol.ids import Digest, SessionId, new_report_id
from fleetcount_protocol.vdaf.prio3 import Prio3
from fleetcount_protocol.window.signal import Signal
from fleetcount_protocol.window.window import Window, context_of, prio3_for

_SEED_BYTES: Final = 32
_MOST_SHADES: Final = 1_024
_SHOWN_BYTES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """One splitting: by aggregator, its words of every round's vector; and the ciphertexts to the leader."""

    words: tuple[tuple[tuple[int, ...], ...], ...] = field(repr=False)
    parts: tuple[tuple[bytes, ...], ...] = field(repr=False)
    sealed: tuple[bytes, ...] = field(repr=False)


class ExampleReport:
    """The report of one vehicle: its answer is drawn once, its shares at every call of `seen`."""

    def __init__(self, window: Window, reading: Signal, source: RandomSource) -> None:
        """Draw the answer of a vehicle whose signal reads `reading`, as its device would (client/answering.py)."""
        self._window = window
        self._source = source
        # The digest of a device that does not exist: a report id is bound to one. No aggregator gets this report.
        self._device = Digest(source.random_bytes(32))
        self._truth = truth_of(window, Reading(value=reading), source)
        self._secret: TwoRoundSecret | None = None
        if window.design.form is AnswerForm.TWO_ROUNDS:
            self._secret = draw_two_round(window, self._truth, (), source, device=self._device)

    def seen(self) -> Mapping[str, Any]:
        """Return, as JSON, what each aggregator, the broker and all aggregators together see of one new splitting."""
        split, prio3 = self._split(), prio3_for(self._window)
        together = [prio3.field.add_vectors(words, len(words[0])) for words in zip(*split.words, strict=True)]
        places = [vector.index(1) for vector in together]
        return {
            "rounds": len(places),
            "parties": [
                {
                    "id": str(one.aggregator_id),
                    "operator": one.operator,
                    "bytes": sum(map(len, parts)),
                    "hex": parts[0][:_SHOWN_BYTES].hex(),
                    "shades": [_shades(vector[1:], prio3.field.modulus) for vector in words],
                }
                for one, parts, words in zip(self._window.aggregators, split.parts, split.words, strict=True)
            ],
            "broker": {
                "bytes": sum(map(len, split.sealed)),
                "hex": split.sealed[0][:_SHOWN_BYTES].hex(),
                "shades": [list(sealed[: min(self._window.values, _MOST_SHADES)]) for sealed in split.sealed],
            },
            "together": {
                "places": [[place, self._label(place)] for place in places],
                "sentence": self._sentence(places),
                "truth": self._label(self._truth) if isinstance(self._truth, int) else "",
            },
        }

    def _split(self) -> _Split:
        rounds = self._rounds()
        prio3 = prio3_for(self._window)
        by_party = tuple(zip(*(one.parts for one in rounds), strict=True))
        words = tuple(_words(self._window, prio3, place, parts) for place, parts in enumerate(by_party))
        return _Split(words=words, parts=by_party, sealed=tuple(self._sealed(one) for one in rounds))

    def _rounds(self) -> Sequence[ReportParts]:
        """Return the messages of a new report with the same answer."""
        window, source = self._window, self._source
        if self._secret is None:
            return [one_round_parts(window, self._truth, source, device=self._device)]
        report_id = new_report_id(window.window_id, self._device, source)
        secret = replace(self._secret, report_id=report_id, seed=source.random_bytes(_SEED_BYTES))
        return [round_one_parts(window, secret), round_two_parts(window, secret)]

    def _sealed(self, message: ReportParts) -> bytes:
        """Return the ciphertext to the leader, under the key of a session that is used once."""
        key = WindowKey(
            session_id=SessionId(self._source.random_bytes(16)), number=1, key=self._source.random_bytes(32)
        )
        window_id, share = self._window.window_id, message.public_share
        return seal_instalment(key, window_id, message.report_id, message.round, 0, share, message.parts[0]).ciphertext

    def _label(self, place: int) -> str:
        return "none of them" if place == 0 else self._window.domain.label(place)

    def _sentence(self, places: Sequence[int]) -> str:
        """Return a sentence about what all aggregators together learn from the answer."""
        names = [self._label(place) for place in places]
        rate = self._window.design.exposure
        if places == [0, 0]:
            answer = "Both rounds say none of them, as of any vehicle outside all cells and of some outside the sample."
        elif len(places) == 2 and places[0] == places[1]:
            answer = (
                f"Both rounds say {names[0]} and cancel: this vehicle was not in the sample, its answer tells nothing."
            )
        elif len(places) == 2:
            answer = (
                f"Round two says {names[1]}, which round one did not: this vehicle was in the sample, it is the truth."
            )
        elif self._window.design.device_randomizes:
            answer = f"The answer is {names[0]}, which the vehicle's own coins may have changed."
        else:
            return f"The answer is {names[0]}, the truth: no coins protect it from all aggregators together."
        return f"{answer} The chance that all of them together see a vehicle's truth is p = {rate}."


def _words(window: Window, prio3: Prio3, place: int, parts: Sequence[bytes]) -> tuple[tuple[int, ...], ...]:
    """Return an aggregator's share of every round's vector, in field elements: a helper expands its seed."""
    length = window.values + 1
    if place:
        seed = parts[0][:_SEED_BYTES]
        stream = prio3.helper_measurement_share(context_of(window), place, seed)
    else:
        size = prio3.field.encoded_size
        explicit = b"".join(part for part in parts)[: size * prio3.circuit.measurement_length]
        stream = prio3.field.decode_vector(explicit, prio3.circuit.measurement_length)
    return tuple(tuple(stream[start : start + length]) for start in range(0, len(stream), length))


def _shades(words: Sequence[int], modulus: int) -> list[int]:
    """Return each word as one of 256 shades, at most `_MOST_SHADES` of them."""
    return [word * 256 // modulus for word in words[:_MOST_SHADES]]
