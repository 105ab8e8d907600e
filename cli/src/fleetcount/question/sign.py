"""`fleetcount question sign` and `submit`: an operator's signature, and the leader's hand-over.

Reads, checks and writes files; it must not open a connection. The seed of the verify keys goes to the leader's question
directory alone.
"""

import contextlib
import stat
import time
from collections.abc import Generator
from pathlib import Path

import click
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_protocol.errors import SignatureError, UsageError
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.question.question import Question, SignedQuestion, check_verify_seed
from fleetcount_protocol.question.signing import (
    encode_signed_question,
    sign_question,
    signed_question,
    verify_signed_question,
)
from fleetcount_protocol.window.signing import verify_ed25519

from fleetcount.command.exits import RefusedByPolicyError
from fleetcount.command.files import read_bytes, write_file
from fleetcount.command.lazy import StrictCommand
from fleetcount.command.results import EXPLAIN, utc
from fleetcount.keys.operator import CONFIG, Operator, operator_of
from fleetcount.question.create import print_question
from fleetcount.question.files import check_name, read_question, seed_path


@click.command("sign", cls=StrictCommand)
@CONFIG
@EXPLAIN
@click.argument("path", metavar="NAME.question", type=click.Path(path_type=Path))
def sign(config_path: Path, path: Path, explain: bool) -> None:
    """Show what the question asks and promises, check it against this aggregator's configuration, and sign it.

    One signature stands for every window: nothing more is signed until the question ends.
    """
    check_name(path)
    signed = add_signature(path, operator_of(config_path))
    print_question(signed, explain)
    click.echo(f"signed {path}: {'complete' if signed.complete else 'others have still to sign'}")


@click.command("submit", cls=StrictCommand)
@CONFIG
@click.argument("path", metavar="NAME.question", type=click.Path(path_type=Path))
def submit(config_path: Path, path: Path) -> None:
    """Check all signatures and the seed, and put both files into the leader's question directory.

    A question that is counted from submission starts now: the leader fixes its times as it installs it, once; submitted
    again it keeps them. The leader removes its copy of the seed once the question is stored. Delete yours then.
    """
    check_name(path)
    target = submit_question(path, operator_of(config_path), time.time())
    click.echo(f"submitted {target}; once it is installed, delete {seed_path(path)}")


def add_signature(path: Path, operator: Operator) -> SignedQuestion:
    """Sign the question at `path` as this operator and write it back; signing again changes nothing.

    Raises:
        UsageError: the question does not list this aggregator.
        RefusedByPolicyError: another deployment, other keys or operators than this configuration names, or a
            batch smaller than it allows.
        SignatureError: a signature that is there does not verify.
    """
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
    """Put the file's name before the error that refuses its content."""
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
