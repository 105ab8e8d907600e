"""Derivation of one window of a question and of its verify key, with the same result at every party.

It must not decide whether a window is asked: orders and clocks do (`orders`).
"""

import hashlib
import hmac
from dataclasses import fields
from typing import Final

from fleetcount_protocol.errors import QuestionError, UsageError
from fleetcount_protocol.ids import WindowId
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.question.fields import candidates, window_fields, window_ref, window_times
from fleetcount_protocol.question.question import Question
from fleetcount_protocol.window.codec import encode_times, window_label
from fleetcount_protocol.window.domain import Prefixes
from fleetcount_protocol.window.fields import WindowFields
from fleetcount_protocol.window.window import Window

VERIFY_KEY_LABEL: Final = b"fleetcount v1 verify key"


def window_at(question: Question, index: int, survivors: tuple[int, ...] = ()) -> Window:
    """Return a window, 0 to `windows` - 1: the same bytes at every party.

    Run by every party shortly before the window opens. It shares domain, design and all bytes but the times with the
    other windows of the question object, so that it costs a copy of the bytes. A later step of a drill-down needs the
    cells that survived the step before it (`surviving_cells`) and is made and checked anew.

    Raises:
        UsageError: the question has no such window, or survivors that are impossible for the step before.
        QuestionError: the question has not started.
    """
    if type(index) is not int or not 0 <= index < question.schedule.windows:
        raise UsageError(f"window is {str(index)[:40]}, allowed: 0 to {question.schedule.windows - 1}")
    times = window_times(question.schedule, index)
    walk = question.drill_down
    if walk is not None and walk.step_of(index):
        codes = question.domain.codes if isinstance(question.domain, Prefixes) else None
        domain = candidates(survivors, walk, walk.step_of(index), codes)
        of = window_fields(question, question.question_id, index, domain)
        return Window(**{one.name: getattr(of, one.name) for one in fields(WindowFields)})
    if survivors:
        raise UsageError(f"window {index} follows no step of a drill-down, allowed: no survivors")
    ref = window_ref(question, question.question_id, index)
    first = question.first_window
    # Not checked again: `check_question` has applied the rules of a window to the first and the last window.
    window = object.__new__(Window)
    shared = {one.name: getattr(first, one.name) for one in fields(first)}
    window.__dict__.update(shared, **times, question=ref, design=first.design)
    before, behind = question.shared_bytes
    window.__dict__["canonical"] = window_label(ref) + before + encode_times(window) + behind
    return window


def window_verify_key(seed: bytes, window_id: WindowId) -> bytes:
    """Return the 32-byte verify key of a window: HKDF-Expand (RFC 5869, section 2.3) of the seed, its first block.

    Run by aggregators. The seed is 32 uniform bytes, so the extract step of HKDF is not needed.

    Raises:
        UsageError: a seed of another size (the message withholds it).
    """
    if len(seed) != VERIFY_KEY_BYTES:
        raise UsageError(f"the seed of verify keys has {len(seed)} bytes, allowed: {VERIFY_KEY_BYTES}")
    return hmac.digest(seed, VERIFY_KEY_LABEL + window_id + b"\x01", "sha256")


def check_verify_seed(question: Question, seed: bytes) -> None:
    """Refuse a seed of verify keys whose digest is not in the signed question.

    Raises:
        QuestionError: another size or another digest (the message withholds it).
    """
    if len(seed) != VERIFY_KEY_BYTES or hashlib.sha256(seed).digest() != question.verify_seed_digest:
        raise QuestionError("the seed of verify keys is not the one the question commits to")
