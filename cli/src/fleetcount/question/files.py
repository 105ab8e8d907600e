"""Question files on their way from the asker to the leader, and what a person reads of a question.

NAME.question is signed once by every operator; NAME.seed lies beside it. Reads and writes files; it must not sign.
"""

import json
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Any, Final

from fleetcount_client.ledger import Ledger, charges_of_question, windows_of_others
from fleetcount_client.policy import OwnerPolicy, judge_question
from fleetcount_mechanisms.accounting.question_statement import one_window_words, plain_words, question_views
from fleetcount_mechanisms.noise import NoiseLaw
from fleetcount_mechanisms.statement_words import plain_sentences
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import (
    MAX_SIGNED_QUESTION_BYTES,
    Question,
    SignedQuestion,
    decode_signed_question,
    encode_signed_question,
    window_at,
)
from fleetcount_protocol.question.question_json import question_to_json
from fleetcount_protocol.window.codes import CodeForm, Codes
from fleetcount_protocol.window.domain import Prefixes, most_of, signals_text
from fleetcount_protocol.window.fields import LevelKind, level_words

from fleetcount.command.base import one_line
from fleetcount.command.options import read_bytes, read_text, write_file
from fleetcount.command.statements import privacy_lines, views_json

_COIN_WORDS: Final = {Coin.WINDOW: "one window", Coin.DAY: "a whole UTC day", Coin.QUESTION: "the whole question"}


def seed_path(path: Path) -> Path:
    """Return where the seed of the verify keys lies: NAME.seed beside NAME.question."""
    return path.with_suffix(".seed")


def check_name(path: Path) -> None:
    """Refuse a question file of another name.

    Raises:
        UsageError: it does not end in .question.
    """
    if path.suffix != ".question" or not path.stem:
        raise UsageError(f"the question file is {str(path)[:80]!r}; its name must end in .question")


def read_question(path: Path) -> SignedQuestion:
    """Return the question and the signatures it has so far.

    Raises:
        UsageError: the file cannot be read or is no question file.
    """
    data = read_bytes(path, largest=MAX_SIGNED_QUESTION_BYTES)
    try:
        return decode_signed_question(data)
    except FleetcountError as error:
        raise UsageError(f"{path} is no question file: {error}") from error


def refusal_of(directory: Path, question: Question) -> str:
    """Return why the aggregator of a question directory refused a question that lies there, "" if it did not."""
    for refusal in sorted(directory.glob("*.refused")):
        with suppress(UsageError):  # Of an order, or of what is no question.
            if read_question(refusal.with_suffix(".question")).question.question_id == question.question_id:
                said = read_text(refusal).strip()
                return f"question {question.question_id.hex()[:12]} was refused: {said} ({refusal})"
    return ""


def unsigned(question: Question) -> SignedQuestion:
    """Return a question without any signature."""
    return SignedQuestion(question=question, signatures=(b"",) * len(question.aggregators))


def new_question_files(path: Path, question: Question, seed: bytes) -> None:
    """Write an unsigned question, the seed of its verify keys (mode 0600) and NAME.json for people: all or no file.

    Raises:
        UsageError: one of them is there already, or cannot be written.
    """
    text = json.dumps(question_json(question), indent=1, ensure_ascii=False) + "\n"
    files = (
        (seed_path(path), seed, 0o600),
        (path.with_suffix(".json"), text.encode(), 0o644),
        (path, encode_signed_question(unsigned(question)), 0o644),
    )
    for file, _, _ in files:
        if file.exists():
            raise UsageError(f"{file} exists already; nothing was written")
    written: list[Path] = []
    try:
        for file, content, mode in files:
            write_file(file, content, mode=mode, overwrite=False)
            written.append(file)
    except BaseException:
        for file in written:
            file.unlink()
        raise


def question_json(question: Question) -> dict[str, Any]:
    """Return a question for programs and people: every field, its promise in plain words, and every view."""
    views = question_views(question.design, question.shape, question.delta)
    return question_to_json(question) | {"sentences": list(promise_words(question)), "statement": views_json(views)}


def promise_words(question: Question) -> tuple[str, ...]:
    """Return what is promised of all answers of a device to a question, in plain words."""
    if question.one_in > 1:
        return (one_window_words(question.design, question.shape),)
    if question.schedule.windows == 1:
        return plain_sentences(question.design, question_views(question.design, question.shape, question.delta))
    return plain_words(question.design, question.shape, question.delta)


def describe_question(signed: SignedQuestion, width: int, *, explain: bool = False) -> list[str]:
    """Return the lines that an operator reads before signing: plain words first, wrapped; `explain` adds every view."""
    question = signed.question
    who = [
        f"{one.aggregator_id} ({one.operator}){'' if signature else ', not signed yet'}"
        for one, signature in zip(question.aggregators, signed.signatures, strict=True)
    ]
    values = "1 value" if question.first_window.values == 1 else f"{question.first_window.values} values"
    asked = f"asks {signals_text(question.parts)} in {values}"
    lines = [
        f"question {question.name!r} {question.question_id}",
        f"{asked}, mode {question.mode.name.lower()}, deployment {question.deployment!r}",
        *_schedule_lines(question),
        _release_line(question),
        "aggregators: " + "; ".join(who),
        f"answers are taken from devices with a {question.admission.name.lower()} of the deployment",
        *([] if question.schedule.windows == 1 else [""]),
        *_privacy_lines(question, explain=explain),
    ]
    return [part for line in lines for part in _wrapped(line, width)]


def _schedule_lines(question: Question) -> Iterator[str]:
    schedule, first = question.schedule, question.first_window
    if schedule.first is None and (counted := schedule.submission) is not None:
        many = f"{schedule.windows:,} windows, one every {_length_text(schedule.every_s)}"
        yield (
            f"{'one window' if schedule.windows == 1 else many}, the first {_length_text(counted.delay_s)} after it is "
            f"submitted, by {utc_text(counted.latest)} at the latest; each takes answers for "
            f"{_length_text(schedule.round_one_s + schedule.round_two_s)}"
        )
    elif schedule.windows == 1:
        closes = f"round one {utc_text(first.round_one_opens)} to {utc_text(first.round_one_closes)}"
        yield f"one window: {closes}, last close {utc_text(first.round_two_closes)}"
    else:
        yield (
            f"{schedule.windows:,} windows, one every {_length_text(schedule.every_s)}, "
            f"from {utc_text(schedule.opens(0))} to {utc_text(schedule.end)}; each takes answers for "
            f"{_length_text(schedule.round_one_s + schedule.round_two_s)}"
        )
    if (walk := question.drill_down) is not None:
        yield (
            f"drills down over {', '.join(map(str, walk.levels))} bits, a window a level: cells of {walk.threshold} or "
            f"more, the {walk.most_survivors} busiest; one truth asked at {len(walk.levels)} levels counts as as many "
            "answers"
        )
        if isinstance(question.domain, Prefixes) and (codes := question.domain.codes) is not None:
            yield f"asks for {_codes_text(codes)}; a vehicle with several tells one of them, the same at all levels"
    if (most := most_of(question.domain)) > 1:
        yield (
            f"a vehicle tells up to {most} categories at once; one that has more tells {most} of them, drawn anew each"
            " time"
        )
    yield from asked_words(question)
    if question.design.rounds == 2:
        yield f"sampling rate {question.design.exposure}; one toss holds for {_COIN_WORDS[question.coin]}"


def asked_words(question: Question) -> tuple[str, ...]:
    """Return in a sentence who is counted where a window asks a part of the fleet alone; nothing where it asks all."""
    if question.one_in == 1:
        return ()
    return (
        f"each device answers in one window of {question.one_in:,}, the same in every cycle, which it draws for itself:"
        f" a release counts those who were asked in its window, about one device in {question.one_in:,}",
    )


def _codes_text(codes: Codes) -> str:
    match codes.form:
        case CodeForm.DTC:
            return "trouble codes of two bytes, as P0301"
        case CodeForm.DTC_24:
            return "trouble codes with their failure type, as P0301-1F"
        case CodeForm.TEXT:
            return f"texts of 1 to {codes.length} characters of {codes.alphabet}"


def _release_line(question: Question) -> str:
    noise, zooms = question.design.noise, len(question.release.sides)
    strength = "no noise"
    if question.design.noised:
        strength = f"each aggregator's noise: {noise.name}, {_sd(noise)}"
    counted = f", counted at {zooms} zooms in one report" if zooms > 1 else ""
    names = [level_words(question.domain, one) for one in question.release.coarser]
    opened = zip(question.release.coarser, names, question.design.coarser, strict=False)
    own = [f"{name} {_sd(law)}" for one, name, law in opened if one.kind is LevelKind.ZOOM or law != noise]
    counted += "; the margin of each signal has numbers of its own" * bool(question.release.margins)
    levels = question.design.levels
    whole = f"the number of {levels.total_words}" if levels.most > 1 else "the total of all cells"
    counted += f"; {whole} has a number of its own" * question.release.total
    others = f" ({', '.join(own)})" if own else ""
    return f"at least {question.min_batch_size} reports a window; {strength}{counted}{others}"


def _sd(noise: NoiseLaw) -> str:
    return f"sd {ceil(noise.draw_variance**0.5 * 1000) / 1000:g}"


def _privacy_lines(question: Question, *, explain: bool) -> list[str]:
    """Return the promise in plain words: of one window as its record will say it, of many for all together."""
    taking_part, views = default_answer(question), question_views(question.design, question.shape, question.delta)
    if question.schedule.windows == 1:
        return [*privacy_lines(question.design, views, explain=explain), taking_part]
    lines = [*promise_words(question), taking_part]
    if explain:
        lines += ["", "What each adversary can learn of one device:"]
        lines += [f"  {view.audience}, {view.neighbours}: {view.sentence}" for view in views]
    return lines


def default_answer(question: Question) -> str:
    """Return in a sentence whether a device with default limits, which allows such questions at all, takes part.

    Of many windows also whether it takes all of it right after such a question, of which its ledger is full. Where a
    device is asked in one window of several it is one that is asked in the last window, and in the first of the next.
    """
    policy = OwnerPolicy(
        signals=frozenset(part.signal for part in question.parts), allow_direct=True, allow_one_sided=True
    )
    question = question.at_latest()
    schedule, ledger = question.schedule, Ledger()
    length_s = schedule.windows * schedule.every_s
    last, first = (windows_of_others(question, slot) for slot in ((schedule.windows - 1) % question.one_in, 0))
    charges = charges_of_question(question, policy, schedule.opens(0), -inf, last)
    refusal = judge_question(policy, question, window_at(question, 0)) or ledger.judge(policy, charges)
    if refusal is not None:
        return f"A device with default limits refuses it ({refusal.rule}): {refusal.message}."
    takes = "A device with default limits that allows such questions takes all of it"
    if schedule.windows == 1:
        return f"{takes}."
    for charge in charges:
        ledger.put(charge)
    following = replace(schedule, first=schedule.opens(0) + length_s, submission=None)
    after = replace(question, name="another", schedule=following)
    refusal = ledger.judge(policy, charges_of_question(after, policy, schedule.opens(0), -inf, first, ledger))
    if refusal is None:
        return f"{takes}, and all of another one after it without a pause."
    return f"{takes}, and refuses another one right after it ({refusal.rule}): {refusal.message}."


def _wrapped(line: str, width: int) -> list[str]:
    inner = "    " if line.startswith("  ") else "  "
    return textwrap.wrap(one_line(line), width, subsequent_indent=inner, drop_whitespace=True) or [""]


def _length_text(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
