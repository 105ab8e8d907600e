"""Question files on their way from the asker to the leader: NAME.question, signed once by every operator.

Reads, checks and writes files; it must not open a connection. The seed of the verify keys goes to the leader's window
directory alone.
"""

import contextlib
import json
import os
import stat
import textwrap
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fleetcount_client.ledger import Ledger
from fleetcount_client.policy import OwnerPolicy, judge_question
from fleetcount_client.reservation import charges_of_question
from fleetcount_mechanisms.accounting.question_statement import plain_words, question_views
from fleetcount_mechanisms.statement_words import plain_sentences
from fleetcount_protocol.errors import FleetcountError, SignatureError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.question.derive import check_verify_seed, window_at
from fleetcount_protocol.question.fields import Coin
from fleetcount_protocol.question.question import Question, SignedQuestion
from fleetcount_protocol.question.question_json import question_to_json
from fleetcount_protocol.question.signed_file import (
    MAX_SIGNED_QUESTION_BYTES,
    decode_signed_question,
    encode_signed_question,
    signed_question,
)
from fleetcount_protocol.question.signing import sign_question, verify_signed_question
from fleetcount_protocol.window.signing import TrustedAggregator, verify_ed25519

from fleetcount.command.exits import RefusedByPolicyError, one_line
from fleetcount.command.files import read_bytes, write_file
from fleetcount.command.results import privacy_lines, utc, views_json

if TYPE_CHECKING:
    from fleetcount_aggregator.config import AggregatorConfig

_COIN_WORDS: Final = {Coin.WINDOW: "one window", Coin.DAY: "a whole UTC day", Coin.QUESTION: "the whole question"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An aggregator's operator at the command line: its configuration and whom it trusts, itself included."""

    config: "AggregatorConfig"
    aggregator_id: AggregatorId
    trusted: dict[AggregatorId, TrustedAggregator]


def operator_of(config_path: Path) -> Operator:
    """Return the operator of an aggregator's configuration file.

    Raises:
        UsageError: the configuration or the signing key cannot be used.
    """
    from fleetcount_aggregator.config import load_config
    from fleetcount_aggregator.host.keys import load_signing_key
    from fleetcount_aggregator.trust import trusted_by

    config = load_config(config_path, os.environ)
    public = load_signing_key(config.keys.signing_key_file).public_key().public_bytes_raw()
    own = AggregatorId(config.aggregator.id)
    return Operator(config=config, aggregator_id=own, trusted=trusted_by(config, public))


def seed_path(path: Path) -> Path:
    """Return where the seed of the verify keys lies: NAME.seed beside NAME.question."""
    return path.with_suffix(".seed")


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


def unsigned(question: Question) -> SignedQuestion:
    """Return a question that nobody has signed yet."""
    return SignedQuestion(question=question, signatures=(b"",) * len(question.aggregators))


def new_question_files(path: Path, question: Question, seed: bytes) -> None:
    """Write an unsigned question, the seed of its verify keys (mode 0600) and NAME.json for people: all or none.

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
    words = plain_words(question.design, question.shape, question.delta)
    if question.schedule.windows == 1:
        words = plain_sentences(question.design, views)
    return question_to_json(question) | {"sentences": list(words), "statement": views_json(views)}


def add_signature(path: Path, operator: Operator) -> SignedQuestion:
    """Sign the question at `path` as this operator and write it back; signing again changes nothing.

    Raises:
        UsageError: the question does not list this aggregator.
        RefusedByPolicyError: another deployment, other keys or operators than this configuration names, or a
            batch smaller than it allows.
        SignatureError: a signature that is there does not verify.
    """
    from fleetcount_aggregator.host.keys import load_signing_key

    signed = read_question(path)
    question = signed.question
    position = question.first_window.position_of(operator.aggregator_id)
    _check_before_signing(question, operator)
    for aggregator, signature in zip(question.aggregators, signed.signatures, strict=True):
        if signature:
            what = f"{path} was changed after it was signed: the signature of {aggregator.aggregator_id}"
            verify_ed25519(aggregator.signing_public_key, signature, question.canonical, what)
    key = load_signing_key(operator.config.keys.signing_key_file)
    signatures = list(signed.signatures)
    signatures[position] = sign_question(question, key)
    result = signed_question(question, tuple(signatures))
    write_file(path, encode_signed_question(result), mode=stat.S_IMODE(path.stat().st_mode))
    return result


def _check_before_signing(question: Question, operator: Operator) -> None:
    """Refuse a question that this operator's aggregator would not take on."""
    config = operator.config
    if question.deployment != config.aggregator.deployment:
        raise RefusedByPolicyError(
            f"deployment of the question is {question.deployment!r}; this aggregator serves"
            f" {config.aggregator.deployment!r}"
        )
    for one in question.aggregators:
        known = operator.trusted.get(one.aggregator_id)
        if known is None:
            raise RefusedByPolicyError(f"aggregator {one.aggregator_id!r} is not among this configuration's [[peers]]")
        own = one.aggregator_id == operator.aggregator_id
        keys = known.keys[-1:] if own else known.keys_at(question.schedule.latest_start)
        if known.operator != one.operator or one.signing_public_key not in keys:
            raise RefusedByPolicyError(f"aggregator {one.aggregator_id!r} has another operator or key than configured")
    if question.min_batch_size < config.limits.smallest_min_batch_size:
        raise RefusedByPolicyError(
            f"min_batch_size is {question.min_batch_size}; it must be at least {config.limits.smallest_min_batch_size}"
        )


def submit_question(path: Path, operator: Operator, now: float) -> Path:
    """Put a complete question and its seed into the leader's question directory; the question appears last, and at
    once.

    Raises:
        UsageError: not the leader, signatures missing, the seed is missing or not the question's, or the first
            window takes no answers any more.
        RefusedByPolicyError: it was submitted before.
        SignatureError, QuestionError: a signature that does not verify.
    """
    signed = read_question(path)
    question = signed.question
    leader = question.aggregators[0].aggregator_id
    if leader != operator.aggregator_id:
        raise UsageError(f"the question is led by {leader!r}; submit it there, not at {operator.aggregator_id!r}")
    missing = [one.aggregator_id for one, s in zip(question.aggregators, signed.signatures, strict=True) if not s]
    if missing:
        raise UsageError(f"{path} is not signed by {', '.join(missing)}; each operator runs 'fleetcount question sign'")
    with _named(path):
        verify_signed_question(signed, operator.trusted)
    closes, counted = question.first_window.round_one_closes, question.schedule.submission
    if counted is not None and now + counted.delay_s > counted.latest:
        late = utc(counted.latest - counted.delay_s)
        raise UsageError(f"it is {utc(now)}, the question had to be submitted by {late}; create it anew")
    if now >= closes:
        raise UsageError(f"round one of the first window closed at {utc(closes)}; create the question anew")
    seed = read_bytes(seed_path(path), largest=VERIFY_KEY_BYTES)
    with _named(seed_path(path)):
        check_verify_seed(question, seed)
    directory = operator.config.aggregator.question_directory
    target = directory / path.name
    if target.exists():
        raise UsageError(f"{target} exists already; give the question another file name")
    _check_first(directory, question)
    write_file(seed_path(target), seed, mode=0o600)
    write_file(target, encode_signed_question(signed), overwrite=False)
    return target


@contextlib.contextmanager
def _named(path: Path) -> Generator[None]:
    """Give what refuses the content of a file the file's name."""
    try:
        yield
    except (SignatureError, UsageError) as error:
        raise type(error)(f"{path}: {error}") from None


def _check_first(directory: Path, question: Question) -> None:
    """Refuse a question that was submitted under another name: the aggregator would take no notice of it."""
    for other in sorted(directory.glob("*.question")):
        with contextlib.suppress(UsageError):
            same = read_question(other).question.question_id == question.question_id
            if same and not other.with_suffix(".refused").exists():
                raise RefusedByPolicyError(f"{other} is the same question; it is submitted once")


# What a person reads.


def describe_question(signed: SignedQuestion, width: int, *, explain: bool = False) -> list[str]:
    """Return what a person wants to know before signing: plain words first, wrapped; `explain` adds every view."""
    question = signed.question
    who = [
        f"{one.aggregator_id} ({one.operator}){'' if signature else ', not signed yet'}"
        for one, signature in zip(question.aggregators, signed.signatures, strict=True)
    ]
    values = "1 value" if question.first_window.values == 1 else f"{question.first_window.values} values"
    lines = [
        f"question {question.name!r} {question.question_id}",
        f"asks {question.signal} in {values}, mode {question.mode.name.lower()}, deployment {question.deployment!r}",
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
            f"submitted, by {utc(counted.latest)} at the latest; each takes answers for "
            f"{_length_text(schedule.round_one_s + schedule.round_two_s)}"
        )
    elif schedule.windows == 1:
        closes = f"round one {utc(first.round_one_opens)} to {utc(first.round_one_closes)}"
        yield f"one window: {closes}, last close {utc(first.round_two_closes)}"
    else:
        yield (
            f"{schedule.windows:,} windows, one every {_length_text(schedule.every_s)}, from {utc(schedule.opens(0))} "
            f"to {utc(schedule.end)}; each takes answers for "
            f"{_length_text(schedule.round_one_s + schedule.round_two_s)}"
        )
    if (walk := question.drill_down) is not None:
        yield (
            f"drills down over {', '.join(map(str, walk.levels))} bits, a window a level: cells of {walk.threshold} or "
            f"more, the {walk.most_survivors} busiest; one truth asked at {len(walk.levels)} levels counts as as many "
            "answers"
        )
    if question.design.rounds == 2:
        yield f"sampling rate {question.design.exposure}; one toss holds for {_COIN_WORDS[question.coin]}"


def _release_line(question: Question) -> str:
    noise, zooms = question.design.noise, question.release.zooms
    strength = "no noise"
    if question.design.noised:
        strength = f"each aggregator's noise: {noise.name}, sd {ceil(noise.draw_variance**0.5 * 1000) / 1000:g}"
    counted = f", counted at {zooms} zooms in one report" if zooms > 1 else ""
    return f"at least {question.min_batch_size} reports a window; {strength}{counted}"


def _privacy_lines(question: Question, *, explain: bool) -> list[str]:
    """Return the promise in plain words: of one window as its record will say it, of many for all together."""
    taking_part, views = default_answer(question), question_views(question.design, question.shape, question.delta)
    if question.schedule.windows == 1:
        return [*privacy_lines(question.design, views, explain=explain), taking_part]
    lines = [*plain_words(question.design, question.shape, question.delta), taking_part]
    if explain:
        lines += ["", "What each adversary can learn of one device:"]
        lines += [f"  {view.audience}, {view.neighbours}: {view.sentence}" for view in views]
    return lines


def default_answer(question: Question) -> str:
    """Return in a sentence whether a device with default limits, which allows such questions at all, takes part."""
    policy = OwnerPolicy(signals=frozenset({question.signal}), allow_direct=True, allow_one_sided=True)
    question = question.at_latest()
    refusal = judge_question(policy, question, window_at(question, 0))
    if refusal is None:
        charges = charges_of_question(question, policy, question.schedule.opens(0), -inf)
        refusal = Ledger().judge(policy, charges)
    if refusal is None:
        return "A device with default limits that allows such questions takes all of it."
    return f"A device with default limits refuses it ({refusal.rule}): {refusal.message}."


def _wrapped(line: str, width: int) -> list[str]:
    inner = "    " if line.startswith("  ") else "  "
    return textwrap.wrap(one_line(line), width, subsequent_indent=inner, drop_whitespace=True) or [""]


def _length_text(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
