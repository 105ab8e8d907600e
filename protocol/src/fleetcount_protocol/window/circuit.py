"""What follows from a window for its reports: the proof's context and circuit, and which sums are opened.

It must not apply the rules of a window or read its bytes. The circuits are those of `vdaf`, loaded only where a report
is made or checked.
"""

from typing import TYPE_CHECKING, Final

from fleetcount_mechanisms.answers import AnswerForm
from fleetcount_mechanisms.design import Design

from fleetcount_protocol.window.window import Window

if TYPE_CHECKING:  # A device starts without the circuits.
    from fleetcount_protocol.vdaf.prio3 import Prio3

CONTEXT_LABEL: Final = b"FCT1"
"""Keeps the VDAF context at 36 bytes, so that the words of a joint-randomness hash stay 8-byte aligned."""


def context_of(window: Window) -> bytes:
    """Return the VDAF context of the window's reports: "FCT1" and the window id, 36 bytes."""
    return CONTEXT_LABEL + window.window_id


def opened_outputs(window: Window) -> slice:
    """Return which part of a verified output share is added up (`Design.outputs`); the rest is dropped.

    What is noised and opened are these sums and, behind them, those of every coarser zoom (`Design.opened_sums`).

    The truth's circuit alone gives one number more than is opened: output 0.
    """
    return slice(1, None) if window.design.form is AnswerForm.TRUTH else slice(None)


def opened_count(window: Window) -> int:
    """Return how many numbers every aggregator noises, commits to and opens: the outputs, then the participants.

    The number of participants is opened in windows of questions that say so: the leader's element is the number of
    accepted reports plus its noise, everybody else's its noise alone (docs/wire.md, "Opening").
    """
    return window.design.output_count + window.question.noised_participants


def prio3_for(window: Window) -> "Prio3":
    """Return the Prio3 instance of the window's reports."""
    return prio3_of(window.design)


def prio3_of(design: Design) -> "Prio3":
    """Return the Prio3 instance of a design's reports: its circuit, one share an aggregator."""
    from fleetcount_protocol.vdaf.prio3 import prio3_bits, prio3_one_hot, prio3_two_round

    make = {AnswerForm.TWO_ROUNDS: prio3_two_round, AnswerForm.BITS: prio3_bits}.get(design.form, prio3_one_hot)
    return make(design.values + 1, design.aggregators)


def report_bytes(design: Design) -> int:
    """Return the bytes of shares that a device sends for one answer, to all aggregators and in all rounds.

    Without ids, tags and sessions, which are a hundred bytes a message.
    """
    prio3 = prio3_of(design)
    return sum(prio3.input_share_size(one) + prio3.public_share_size for one in range(design.aggregators))
