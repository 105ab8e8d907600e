"""Series files on their way from the asker to the leader: NAME.series, signed once by every operator.

Reads, checks and writes files; it must not open a connection. The seed of the verify keys goes to the leader's task
directory alone.
"""

import contextlib
import json
import stat
import textwrap
from collections.abc import Generator
from math import ceil, inf
from pathlib import Path
from typing import Any, Final

from fleetcount_client.ledger import Ledger
from fleetcount_client.policy import OwnerPolicy, judge_series
from fleetcount_client.reservation import charges_of_series
from fleetcount_mechanisms.accounting.series_statement import plain_words, series_views
from fleetcount_mechanisms.statement import AdversaryView
from fleetcount_protocol.errors import FleetcountError, SignatureError, UsageError
from fleetcount_protocol.series.derive import check_verify_seed, window_task
from fleetcount_protocol.series.fields import Coin
from fleetcount_protocol.series.series import Series, SignedSeries
from fleetcount_protocol.series.series_json import series_to_json
from fleetcount_protocol.series.signed_file import decode_signed_series, encode_signed_series, signed_series
from fleetcount_protocol.series.signing import sign_series, verify_signed_series

from fleetcount.exits import RefusedByPolicyError, one_line
from fleetcount.files import read_bytes, write_file
from fleetcount.task_files import Operator, check_before_signing, check_given_signatures, utc, zooms_words

__all__ = [
    "add_series_signature",
    "describe_series",
    "new_series_files",
    "read_series",
    "seed_path",
    "series_json",
    "submit_series",
]

MAX_SERIES_FILE_BYTES: Final = 4 * 2**20
_SEED_BYTES: Final = 32
_COIN_WORDS: Final = {Coin.WINDOW: "one window", Coin.DAY: "a whole UTC day", Coin.SERIES: "the whole series"}


def seed_path(series_path: Path) -> Path:
    """Return where the seed of the verify keys lies: NAME.verify-seed beside NAME.series."""
    return series_path.with_suffix(".verify-seed")


def read_series(path: Path) -> SignedSeries:
    """Return the series and the signatures it has so far.

    Raises:
        UsageError: the file cannot be read or is no series file.
    """
    data = read_bytes(path, largest=MAX_SERIES_FILE_BYTES)
    try:
        return decode_signed_series(data)
    except FleetcountError as error:
        raise UsageError(f"{path} is no series file: {error}") from error


def new_series_files(path: Path, series: Series, seed: bytes) -> None:
    """Write an unsigned series, the seed of its verify keys (mode 0600) and NAME.json for people: all or none.

    Raises:
        UsageError: one of them is there already, or cannot be written.
    """
    unsigned = SignedSeries(series=series, signatures=(b"",) * len(series.aggregators))
    text = json.dumps(series_json(series), indent=1, ensure_ascii=False) + "\n"
    files = (
        (seed_path(path), seed, 0o600),
        (path.with_suffix(".json"), text.encode(), 0o644),
        (path, encode_signed_series(unsigned), 0o644),
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


def series_json(series: Series) -> dict[str, Any]:
    """Return a series for programs and people: every field, its promise in plain words, and every view."""
    words = list(plain_words(series.design, series.shape, series.delta))
    return series_to_json(series) | {"sentences": words, "statement": [_view_json(view) for view in _views(series)]}


def add_series_signature(path: Path, operator: Operator) -> SignedSeries:
    """Sign the series at `path` as this operator and write it back; signing again changes nothing.

    Raises:
        UsageError: the series does not list this aggregator.
        RefusedByPolicyError: the series names other keys or operators than this configuration, or a batch smaller than
            it allows.
        SignatureError: a signature that is there does not verify.
    """
    from fleetcount_aggregator.host.keys import load_signing_key

    signed = read_series(path)
    series = signed.series
    position = series.first_window.position_of(operator.aggregator_id)
    check_before_signing(series.first_window, operator)
    check_given_signatures(series.aggregators, signed.signatures, series.canonical, path)
    key = load_signing_key(operator.config.keys.signing_key_file)
    signatures = list(signed.signatures)
    signatures[position] = sign_series(series, key)
    result = signed_series(series, tuple(signatures))
    write_file(path, encode_signed_series(result), mode=stat.S_IMODE(path.stat().st_mode))
    return result


def submit_series(path: Path, operator: Operator, now: float) -> Path:
    """Put a complete series and its seed into the leader's task directory; the series appears last, and at once.

    Raises:
        UsageError: not the leader, signatures missing, the seed is missing or not the series', it is over.
        RefusedByPolicyError: it was submitted before.
        SignatureError, TaskError: a signature that does not verify.
    """
    signed = read_series(path)
    series = signed.series
    leader = series.aggregators[0].aggregator_id
    if leader != operator.aggregator_id:
        raise UsageError(f"the series is led by {leader!r}; submit it there, not at {operator.aggregator_id!r}")
    missing = [one.aggregator_id for one, s in zip(series.aggregators, signed.signatures, strict=True) if not s]
    if missing:
        raise UsageError(f"{path} is not signed by {', '.join(missing)}; each operator runs 'fleetcount series sign'")
    with _named(path):
        verify_signed_series(signed, operator.trusted)
    if now >= series.schedule.closes(0):
        raise UsageError(f"the first window closed at {utc(series.schedule.closes(0))}; create the series anew")
    seed = read_bytes(seed_path(path), largest=_SEED_BYTES)
    with _named(seed_path(path)):
        check_verify_seed(series, seed)
    directory = operator.config.aggregator.task_directory
    target = directory / path.name
    if target.exists():
        raise UsageError(f"{target} exists already; give the series another file name")
    _check_first(directory, series)
    write_file(seed_path(target), seed, mode=0o600)
    write_file(target, encode_signed_series(signed), overwrite=False)
    return target


@contextlib.contextmanager
def _named(path: Path) -> Generator[None]:
    """Give what refuses the content of a file the file's name."""
    try:
        yield
    except (SignatureError, UsageError) as error:
        raise type(error)(f"{path}: {error}") from None


def _check_first(directory: Path, series: Series) -> None:
    """Refuse a series that was submitted under another name: the aggregator would take no notice of it."""
    for other in sorted(directory.glob("*.series")):
        with contextlib.suppress(UsageError):
            same = read_series(other).series.series_id == series.series_id
            if same and not other.with_suffix(".refused").exists():
                raise RefusedByPolicyError(f"{other} is the same series; it is submitted once")


# What a person reads.


def describe_series(signed: SignedSeries, width: int, *, explain: bool = False) -> list[str]:
    """Return what a person wants to know before signing: plain words first, wrapped; `explain` adds every view."""
    series, schedule = signed.series, signed.series.schedule
    who = [
        f"{one.aggregator_id} ({one.operator}){'' if signature else ', not signed yet'}"
        for one, signature in zip(series.aggregators, signed.signatures, strict=True)
    ]
    values = "1 value" if series.first_window.values == 1 else f"{series.first_window.values} values"
    noise = series.design.noise
    lines = [
        f"series {series.name!r} {series.series_id}",
        f"asks {series.signal} in {values}, mode {series.mode.name.lower()}, deployment {series.deployment!r}",
        f"{schedule.windows:,} windows, one every {_length_text(schedule.every_s)}, from {utc(schedule.first)} to "
        f"{utc(schedule.end)}; each takes answers for {_length_text(schedule.round_one_s + schedule.round_two_s)}",
        f"at least {series.min_batch_size} reports a window; each aggregator's noise: {noise.name}, "
        f"sd {ceil(noise.draw_variance**0.5 * 1000) / 1000:g}{zooms_words(series.release)}",
        "aggregators: " + "; ".join(who),
    ]
    if series.design.rounds == 2:
        lines.insert(4, f"sampling rate {series.design.exposure}; one toss holds for {_COIN_WORDS[series.coin]}")
    if (walk := series.drill_down) is not None:
        lines.insert(
            3,
            f"drills down over {', '.join(map(str, walk.levels))} bits, a window a level: cells of {walk.threshold} or "
            f"more, the {walk.most_survivors} busiest; one truth asked at {len(walk.levels)} levels counts as as many "
            "answers",
        )
    lines += ["", *plain_words(series.design, series.shape, series.delta), default_answer(series)]
    if explain:
        lines += ["", "What each adversary can learn of one device:"]
        lines += [f"  {view.audience}, {view.neighbours}: {view.sentence}" for view in _views(series)]
    return [part for line in lines for part in _wrapped(line, width)]


def default_answer(series: Series) -> str:
    """Return in a sentence whether a device with default limits, which allows such questions at all, takes part."""
    policy = OwnerPolicy(signals=frozenset({series.signal}), allow_direct=True, allow_one_sided=True)
    refusal = judge_series(policy, series, window_task(series, 0))
    if refusal is None:
        charges = charges_of_series(series, policy, series.schedule.first, -inf)
        refusal = Ledger().judge(policy, charges)
    if refusal is None:
        return "A device with default limits that allows such questions takes all of it."
    return f"A device with default limits refuses it ({refusal.rule}): {refusal.message}."


def _views(series: Series) -> tuple[AdversaryView, ...]:
    return series_views(series.design, series.shape, series.delta)


def _wrapped(line: str, width: int) -> list[str]:
    inner = "    " if line.startswith("  ") else "  "
    return textwrap.wrap(one_line(line), width, subsequent_indent=inner, drop_whitespace=True) or [""]


def _length_text(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _view_json(view: AdversaryView) -> dict[str, Any]:
    return {
        "adversary": view.adversary,
        "audience": view.audience,
        "change": view.neighbours,
        "epsilon": None if view.epsilon is None else f"{view.epsilon:f}",
        "delta": f"{view.delta:f}",
        "sentence": view.sentence,
    }
