"""From the events of a demo to statements on a board, for its page.

It must not read a socket or draw a picture. A number of participants is known from the demo's own vehicles alone.
"""

import base64
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, Protocol

from fleetcount_analysis.interval_words import level_text
from fleetcount_mechanisms.answers import AnswerLaw
from fleetcount_mechanisms.design import Design
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.randomness import SystemRandom
from fleetcount_mechanisms.statement import epsilon_of, views_of
from fleetcount_mechanisms.statement_words import plain_sentences
from fleetcount_protocol.release.record import ReleaseRecord
from fleetcount_protocol.window.domain import FixedDomain, SquareGrid
from fleetcount_protocol.window.signal import Signal
from fleetcount_protocol.window.window import Window
from fleetcount_simulator.network.events import Held, Refused, RunEvent, Signed

from fleetcount_site.watch.board import Board

_PLACES: Final = 6


class _Example(Protocol):
    def seen(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedQuestion:
    """A demo's question: its text, its law, and the reading of each vehicle.

    `streets` are lines in the domain's own unit, drawn on the map, and `streets_by` names their source.
    """

    text: str
    domain: FixedDomain
    answer: AnswerLaw
    noise: NoiseLaw
    level: Fraction
    aggregators: int
    readings: Sequence[Signal] = field(repr=False)
    streets: Sequence[Sequence[tuple[float, float]]] = field(default=(), repr=False)
    streets_by: str = ""

    @property
    def design(self) -> Design:
        """The question's law."""
        values = self.domain.values
        return Design(answer=self.answer, noise=self.noise, values=values, aggregators=self.aggregators)


class EventWriter:
    """Writes the events of one demo to one board. Any thread may call it; a page's thread calls `example`."""

    def __init__(self, board: Board) -> None:
        """Publish that the demo has begun."""
        self._board = board
        self._lock = threading.Lock()
        self._values: list[int] = []
        self._truths: list[int] = []
        self._held = {"first": Counter[int](), "every": Counter[int]()}
        self._refused: dict[str, Mapping[str, int]] = {}
        self._reading: Signal = None
        self._window: Window | None = None
        self._example: _Example | None = None
        self._pins: dict[str, str] = {}
        self.now("starting", "The question is made.")

    def asked(self, question: WatchedQuestion) -> None:
        """Publish the question and the truths, which only a demo knows."""
        self.now("starting", "Aggregators, broker and vehicles start, and every vehicle connects.")
        domain, design = question.domain, question.design
        self._values = [domain.value_of(reading) for reading in question.readings]
        by_cell, counts = range(1, domain.values + 1), Counter(self._values)
        self._truths = [counts[value] for value in by_cell]
        pairs = zip(question.readings, self._values, strict=True)
        self._reading = next((reading for reading, value in pairs if value), None)
        self._board.state(
            "question",
            {
                "text": question.text,
                "vehicles": len(question.readings),
                "aggregators": question.aggregators,
                "rounds": design.rounds,
                "columns": domain.columns if isinstance(domain, SquareGrid) else 0,
                "level": level_text(question.level),
                "exposure": str(design.exposure),
                "epsilon": str(epsilon_of(design)),
                "cells": [{"value": one, "label": domain.label(one), **_ring(domain, one)} for one in by_cell],
                "truths": self._truths,
                "streets": [[list(point) for point in line] for line in question.streets],
                "streets_by": question.streets_by,
                "promise": list(plain_sentences(design, views_of(design))),
                "views": [{"audience": view.audience, "sentence": view.sentence} for view in views_of(design)],
            },
        )

    def expected(self, question: WatchedQuestion, seed: int) -> None:
        """Publish the range in which the law expects every estimate; loads NumPy and SciPy."""
        from fleetcount_site.watch.expectation import expectation_of  # Loaded late, so that the page appears first.

        found = expectation_of(question.design, self._truths, len(self._values), question.level, seed)
        self._board.state(
            "expectation",
            {"low": found.low, "high": found.high, "widths": found.widths, "runs": found.runs},
        )

    def step(self, stage: str, done: int, total: int) -> None:
        """Publish the progress of a stage of the run."""
        self._board.state(f"stage {stage}", {"stage": stage, "done": done, "total": total})

    def happened(self, happening: RunEvent) -> None:
        """Publish an event of the run."""
        match happening:
            case Signed():
                self._signed(happening.window)
            case Held():
                self._receipts(happening)
            case Refused():
                self._refused[happening.process] = happening.reasons
                total = sum(map(Counter, self._refused.values()), Counter[str]())
                self._board.state("refused", {"reasons": dict(total.most_common())})

    def _signed(self, window: Window) -> None:
        with self._lock:
            self._window, self._example = window, None
        keys = {str(one.aggregator_id): one.signing_public_key for one in window.aggregators}
        self._pins = {name: base64.b64encode(key).decode() for name, key in keys.items()}
        self.now("asking", "The question is signed and the vehicles answer it.")
        self._board.state(
            "signed",
            {
                "window": window.window_id.hex(),
                "operators": [{"id": str(one.aggregator_id), "operator": one.operator} for one in window.aggregators],
                "opens": window.round_one_opens,
                "closes": window.round_one_closes,
                "ends": window.round_two_closes,
            },
        )

    def _receipts(self, held: Held) -> None:
        for name, numbers in (("first", held.first), ("every", held.every)):
            self._held[name].update(self._values[number] for number in numbers)
        by_cell = range(1, len(self._truths) + 1)
        self._board.state(
            "receipts",
            {
                name: {"all": sum(counts.values()), "cells": [counts[value] for value in by_cell]}
                for name, counts in self._held.items()
            },
        )

    def example(self) -> Mapping[str, Any] | None:
        """Return what each party sees of one vehicle's report, split anew at every call; None before it is asked."""
        with self._lock:
            if self._window is None:
                return None
            if self._example is None:
                from fleetcount_site.watch.example_report import (
                    ExampleReport,  # Loads the proofs, which only this needs.
                )

                self._example = ExampleReport(self._window, self._reading, SystemRandom())
            return self._example.seen()

    def released(self, record: ReleaseRecord, signatures: Sequence[bytes]) -> None:
        """Publish the bytes of the record: the page decodes it and checks the signatures by itself.

        The keys are those of the demo's own aggregators, not those in the record.
        """
        self._board.state(
            "released",
            {
                "record": base64.b64encode(record.canonical).decode(),
                "signatures": [base64.b64encode(one).decode() for one in signatures],
                "pins": self._pins,
            },
        )

    def now(self, now: str, text: str) -> None:
        """Publish the state of the demo: "starting", "asking", "released", "failed", "interrupted" or "closed"."""
        self._board.state("state", {"now": now, "text": text})


def _ring(domain: FixedDomain, value: int) -> dict[str, Any]:
    """Return the outline of a cell in the grid's own unit; {} where values are no places."""
    if not isinstance(domain, SquareGrid):
        return {}
    column, row = (value - 1) % domain.columns, (value - 1) // domain.columns
    left, low = (float(start + place * domain.size) for start, place in ((domain.x0, column), (domain.y0, row)))
    right, high = left + float(domain.size), low + float(domain.size)
    corners = ((left, low), (right, low), (right, high), (left, high))
    return {"ring": [[round(x, _PLACES), round(y, _PLACES)] for x, y in corners]}
