"""`fleetcount question create`, `show`, `sign` and `submit`: from a specification to what the leader takes."""

import contextlib
import hashlib
import secrets
import shutil
import stat
import time
from collections.abc import Generator
from decimal import ROUND_CEILING
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Final, cast

import click
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.process.app import limits_of
from fleetcount_aggregator.windows.budget import check_alone
from fleetcount_analysis.interval_words import number_text
from fleetcount_mechanisms.accounting.solving import sd_of_cell
from fleetcount_mechanisms.planning import MEAN_OF, mean_sd
from fleetcount_mechanisms.responses import AsymmetricVector
from fleetcount_mechanisms.statement import hidden_words
from fleetcount_protocol.clock import utc_text
from fleetcount_protocol.errors import QuestionError, SignatureError, UsageError
from fleetcount_protocol.ids import Digest
from fleetcount_protocol.limits import VERIFY_KEY_BYTES
from fleetcount_protocol.question.question import (
    Question,
    SignedQuestion,
    check_verify_seed,
    encode_signed_question,
    sign_question,
    signed_question,
    verify_signed_question,
)
from fleetcount_protocol.window.domain import Bins, Cross, Numbers, Outside, Prefixes
from fleetcount_protocol.window.fields import Mode
from fleetcount_protocol.window.signal import decimal_text
from fleetcount_protocol.window.signing import verify_ed25519

from fleetcount.command.base import EXPLAIN, JSON, OneOf, RefusedByPolicyError, StrictCommand, show
from fleetcount.command.numbers import EPSILON
from fleetcount.command.options import PATH, read_bytes, write_file
from fleetcount.keys.operator import CONFIG, Operator, operator_of
from fleetcount.question.files import (
    check_name,
    describe_question,
    new_question_files,
    question_json,
    read_question,
    refusal_of,
    seed_path,
    unsigned,
)
from fleetcount.question.spec import read_spec

# `fleetcount question create` and `show`: a question from its specification, and what a file asks and promises.
#
# Reads a specification and writes files; it must not sign.

_WIDEST: Final = 100
_SAMPLES: Final = ("window", "brakes", "month", "drill-down", "fault-codes")


@click.command("create", cls=StrictCommand)
@click.option("--spec", metavar="SPEC.toml", type=PATH, help="What is asked, when, and the promise.")
@click.option("--sample", type=OneOf(_SAMPLES), help="A ready one in its place, written beside --output as NAME.toml.")
@click.option("--output", required=True, metavar="NAME.question", type=PATH, help="The file to make.")
@click.option("--epsilon", type=EPSILON, help="The loss of all that is published, in place of the file's.")
@EXPLAIN
def create(spec: Path | None, sample: str | None, output: Path, epsilon: Fraction | None, explain: bool) -> None:
    """Write an unsigned question, NAME.json for people, and the seed of its verify keys (NAME.seed, mode 0600).

    Run by the leader's operator: the seed is for the aggregators alone; with it any party makes false reports pass.

    \b
    [question]      name, deployment, signal, mode, min_batch_size
    [domain]        how the signal becomes a value
    [schedule]      opens, a time, "in 20 s" from now, or "20 s after submission" with submit_by, the last
                    time to submit: then reading and signing may take as long as they like; window, the
                    length of a window with both rounds;
                    for many windows also every, and windows (their number) or until (by which the
                    last ends): their times are UTC
    [mechanism]     how a device answers
    [release]       kind (without it geometric for one window, gaussian for many), and one of
                    epsilon (of the whole question), noise_epsilon, sd, variance (of each noise);
                    followed, true but in a drill-down: noise for such questions one after the
                    other in every 30 days, false for this one alone
    [[aggregators]] their descriptor files, the leader's first

    With --sample: of one window (speeds, or worn brakes), of a month of hourly windows, or a drill-down (to places, or
    to fault codes), each counted from submission. In the directory that `fleetcount keys init` made, which has the
    descriptors that they name:
    fleetcount question create --sample month --output deployment/month.question
    """
    check_name(output)
    if (spec is None) == (sample is None):
        raise UsageError("give --spec SPEC.toml or --sample NAME, one of them")
    if spec is not None:
        _create(spec, output, epsilon, explain)
        return
    spec = _write_sample(str(sample), output.with_suffix(".toml"))
    try:
        _create(spec, output, epsilon, explain)
    except BaseException:
        spec.unlink()
        raise


def _write_sample(name: str, path: Path) -> Path:
    write_file(path, resources.files("fleetcount.samples").joinpath(f"{name}.toml").read_bytes(), overwrite=False)
    return path


def _create(spec: Path, output: Path, epsilon: Fraction | None, explain: bool) -> None:
    seed = secrets.token_bytes(32)
    now, digest = time.time(), Digest(hashlib.sha256(seed).digest())
    made = read_spec(spec, now, digest, epsilon)
    new_question_files(output, made, seed)
    print_question(unsigned(made), explain)
    for line in _reading_lines(made):
        click.echo(line)
    if made.schedule.windows > 1 and made.drill_down is None:
        # Solved both ways, so that whoever asks sees what a successor costs; the same where a noise was given.
        both = [read_spec(spec, now, digest, epsilon, followed=followed).design for followed in (True, False)]
        if both[0].noise != both[1].noise:
            follows, alone = (f"{sd_of_cell(design):,.1f}" for design in both)
            asked = "followed" if made.design.noise == both[0].noise else "alone"
            click.echo(
                f"error of an empty cell as released: {follows} if such questions follow one another, {alone} for one"
                f" alone (release.followed); asked: {asked}"
            )
    click.echo(f"wrote {output}, {output.with_suffix('.json')} and {seed_path(output)}")


def _reading_lines(made: Question) -> Generator[str]:
    """Yield what becomes of a reading that whoever asks may not expect."""
    domain = made.domain
    if isinstance(domain, Cross):
        yield (
            f"a vehicle is counted where all of its {len(domain.parts)} signals have a value; one that is missing,"
            " private or outside its values makes the answer none of them"
        )
    if isinstance(made.mechanism, AsymmetricVector):
        yield f"hidden in each answer: {hidden_words(made.mechanism, lambda value: repr(domain.label(value)))}"
    for part in made.parts:
        if isinstance(bins := part.domain, Bins) and not bins.open_above:
            highest = f"{decimal_text(bins.edges[-1])} {bins.unit}".rstrip()
            of, keys = (f" of {part.signal}", "its ") if isinstance(domain, Cross) else ("", "domain.")
            yield (
                f"a reading{of} of {highest} or more is in no bin; to count it in the last one leave out the last edge"
                f" and set {keys}open_above = true"
            )
    if isinstance(domain, Prefixes) and domain.codes is not None:
        yield (
            "a vehicle with several codes tells one of them, drawn at random for each walk: counted are vehicles that"
            " told a code, of which there are no more than have it; a text that is no such code is none, and a fault"
            " that its owner sees"
        )
    if isinstance(domain, Numbers):
        beyond = "is that end" if domain.outside is Outside.CLAMP else "is none of the values"
        yield (
            f"a reading between two of the {domain.values} points from {domain.label(1)} to"
            f" {domain.label(domain.values)} is rounded by its device to one of them at random, right on average; one"
            f" beyond an end {beyond} (domain.outside)"
        )
        if made.release.weighted:
            yield from _mean_lines(made)
        elif len(made.release.sides) == 1 and made.mode is not Mode.RESPONSE and made.design.noised:
            # Rounding adds n p / (6 (V-1)^2) to the variance of the numbers' sum, noise of variance S adds S V / 12:
            # least at V = 1 + (4 n p / S)^(1/3), where S is p^2 times the variance of a cell's estimate.
            devices = (domain.values - 1) ** 3 * sd_of_cell(made.design) ** 2 * float(made.design.exposure) / 4
            most = float(f"{devices:.1g}")
            yield f"{domain.values} points are best for a mean over about {most:,.0f} devices (domain.points)"


def _mean_lines(made: Question) -> Generator[str]:
    """Yield how far a mean errs in one window, of numbers in the middle of the range."""
    errors = (f"{_shown_error(made, devices)} of {devices:,} devices" for devices in MEAN_OF)
    yield (
        "the mean and the sum of the numbers are read from a number of its own, the weighted sum; 95 % of means are off"
        f" by at most {', '.join(errors)} (release.show)"
    )


def _shown_error(made: Question, devices: int) -> str:
    domain = cast("Numbers", made.domain)
    error = 1.96 * mean_sd(made.design, devices) * float(domain.high - domain.low)
    return f"{number_text(error, rounding=ROUND_CEILING)} {domain.unit}".rstrip()


@click.command("show", cls=StrictCommand)
@EXPLAIN
@JSON
@click.argument("path", metavar="NAME.question", type=PATH)
def show_question(path: Path, explain: bool, as_json: bool) -> None:
    """Show what the question asks and promises, in plain words first."""
    check_name(path)
    signed = read_question(path)
    if as_json:
        show(question_json(signed.question), (), as_json=True)
    else:
        print_question(signed, explain)


def print_question(signed: SignedQuestion, explain: bool) -> None:
    """Print what a person wants to know of a question, in lines of the terminal's width."""
    width = min(_WIDEST, max(40, shutil.get_terminal_size((_WIDEST, 24)).columns))
    for line in describe_question(signed, width, explain=explain):
        click.echo(line)


# `fleetcount question sign` and `submit`: an operator's signature, and the leader's hand-over.
#
# Reads, checks and writes files; it must not open a connection. The seed of the verify keys goes to the leader's
# question directory alone.


@click.command("sign", cls=StrictCommand)
@CONFIG
@EXPLAIN
@click.argument("path", metavar="NAME.question", type=PATH)
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
@click.argument("path", metavar="NAME.question", type=PATH)
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
        RefusedByPolicyError: another deployment, other keys or operators than this configuration names, a
            batch smaller or a loss larger than it allows.
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
    try:
        # Alone, whatever else is installed by then: one that is too large by itself never will be.
        check_alone(question.at_latest(), limits_of(config))
    except QuestionError as error:
        raise RefusedByPolicyError(f"{error}, by [limits] of this aggregator") from None


def submit_question(path: Path, operator: Operator, now: float) -> Path:
    """Put a complete question and its seed into the leader's question directory; the question appears last, and at
    once.

    Raises:
        UsageError: not the leader, signatures missing, the seed is missing or not the question's, or the first
            window takes no answers any more.
        RefusedByPolicyError: it was submitted before, or refused.
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
        late = utc_text(counted.latest - counted.delay_s)
        raise UsageError(f"it is {utc_text(now)}, the question had to be submitted by {late}; create it anew")
    if now >= closes:
        raise UsageError(f"round one of the first window closed at {utc_text(closes)}; create the question anew")
    seed = read_bytes(seed_path(path), largest=VERIFY_KEY_BYTES)
    with _named(seed_path(path)):
        check_verify_seed(question, seed)
    directory = operator.config.aggregator.question_directory
    target = directory / path.name
    if target.exists() and (refusal := refusal_of(directory, question)):
        raise RefusedByPolicyError(f"{refusal}; give the question another file name to submit it once more")
    _check_first(directory, question)
    if target.exists():
        raise UsageError(f"{target} exists already; give the question another file name")
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
