"""Task files on their way from the asker to the leader: NAME.task, signed by one operator after the other.

Reads, checks and writes files; it must not open a connection. The verify key goes to the leader's task directory alone.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcount_protocol.errors import FleetcountError, UsageError
from fleetcount_protocol.ids import AggregatorId
from fleetcount_protocol.task.fields import TaskFields
from fleetcount_protocol.task.signed_file import decode_signed_task, encode_signed_task, signed_task
from fleetcount_protocol.task.signing import TrustedAggregator, sign_task, verify_ed25519, verify_signed_task
from fleetcount_protocol.task.task import Aggregator, Release, SignedTask, Task

from fleetcount.exits import RefusedByPolicyError
from fleetcount.files import read_bytes, write_file
from fleetcount.results import privacy_lines

if TYPE_CHECKING:
    from fleetcount_aggregator.config import AggregatorConfig

__all__ = [
    "Operator",
    "add_signature",
    "check_before_signing",
    "check_given_signatures",
    "describe_task",
    "new_task_files",
    "operator_of",
    "read_task",
    "submit_task",
    "utc",
    "verify_key_path",
    "zooms_words",
]

MAX_TASK_FILE_BYTES: Final = 4 * 2**20
_VERIFY_KEY_BYTES: Final = 32


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


def verify_key_path(task_path: Path) -> Path:
    """Return where the task's verify key lies: NAME.verify-key beside NAME.task."""
    return task_path.with_suffix(".verify-key")


def read_task(path: Path) -> SignedTask:
    """Return the task and the signatures it has so far.

    Raises:
        UsageError: the file cannot be read or is no task file.
    """
    data = read_bytes(path, largest=MAX_TASK_FILE_BYTES)
    try:
        return decode_signed_task(data)
    except FleetcountError as error:
        raise UsageError(f"{path} is no task file: {error}") from error


def new_task_files(path: Path, task: Task, verify_key: bytes) -> None:
    """Write an unsigned task and its verify key (mode 0600), both or neither.

    Raises:
        UsageError: one of them is there already, or cannot be written.
    """
    key_path = verify_key_path(path)
    if path.exists():
        raise UsageError(f"{path} exists already; nothing was written")
    write_file(key_path, verify_key, mode=0o600, overwrite=False)
    try:
        unsigned = SignedTask(task=task, signatures=(b"",) * len(task.aggregators))
        write_file(path, encode_signed_task(unsigned), overwrite=False)
    except BaseException:
        key_path.unlink()
        raise


def add_signature(path: Path, operator: Operator) -> SignedTask:
    """Sign the task at `path` as this operator and write it back; signing again changes nothing.

    Raises:
        UsageError: the task does not list this aggregator.
        RefusedByPolicyError: the task names other keys or operators than this configuration, sealing keys that this
            aggregator does not hold, or a batch smaller than it allows.
        SignatureError: a signature that is there does not verify.
    """
    from fleetcount_aggregator.host.keys import load_signing_key

    signed = read_task(path)
    task = signed.task
    position = task.position_of(operator.aggregator_id)
    check_before_signing(task, operator)
    check_given_signatures(task.aggregators, signed.signatures, task.canonical, path)
    key = load_signing_key(operator.config.keys.signing_key_file)
    signatures = list(signed.signatures)
    signatures[position] = sign_task(task, key)
    result = signed_task(task, tuple(signatures))
    write_file(path, encode_signed_task(result), mode=stat.S_IMODE(path.stat().st_mode))
    return result


def check_given_signatures(
    aggregators: Sequence[Aggregator], signatures: Sequence[bytes], canonical: bytes, path: Path
) -> None:
    """Refuse to sign beside a signature that does not verify: the file was changed after it was given.

    Raises:
        SignatureError: names whose it is.
    """
    for aggregator, signature in zip(aggregators, signatures, strict=True):
        if signature:
            what = f"{path} was changed after it was signed: the signature of {aggregator.aggregator_id}"
            verify_ed25519(aggregator.signing_public_key, signature, canonical, what)


def check_before_signing(task: TaskFields, operator: Operator) -> None:
    """Refuse a question that this operator's aggregator would not take on; of a series, that of its windows.

    Raises:
        RefusedByPolicyError: another deployment, other keys or operators than configured, a batch that is too small, or
            sealing keys that this aggregator does not hold.
    """
    config = operator.config
    if task.deployment != config.aggregator.deployment:
        raise RefusedByPolicyError(
            f"deployment of the question is {task.deployment!r}; this aggregator serves"
            f" {config.aggregator.deployment!r}"
        )
    for one in task.aggregators:
        known = operator.trusted.get(one.aggregator_id)
        if known is None:
            raise RefusedByPolicyError(f"aggregator {one.aggregator_id!r} is not among this configuration's [[peers]]")
        own = one.aggregator_id == operator.aggregator_id
        keys = known.keys[-1:] if own else known.keys_at(task.round_one_opens)
        if known.operator != one.operator or one.signing_public_key not in keys:
            raise RefusedByPolicyError(f"aggregator {one.aggregator_id!r} has another operator or key than configured")
    if task.min_batch_size < config.limits.smallest_min_batch_size:
        raise RefusedByPolicyError(
            f"min_batch_size is {task.min_batch_size}; it must be at least {config.limits.smallest_min_batch_size}"
        )
    _check_own_keys(task, operator)


def _check_own_keys(task: TaskFields, operator: Operator) -> None:
    """Refuse a task that names sealing keys this aggregator does not hold.

    Devices seal to the keys that a task names because its aggregators signed it. Another party that held such a key
    could read this aggregator's shares; together with its own they show every answer.
    """
    held = operator.config.keys.key_ring()
    for key in task.aggregators[task.position_of(operator.aggregator_id)].hpke_keys:
        if held.public_key(key.key_id) != key.public_key:
            raise RefusedByPolicyError(
                f"the task names sealing key {key.key_id} for this aggregator, which is not the one in"
                " [keys] hpke_key_directory: its holder would read this aggregator's shares"
            )


def submit_task(path: Path, operator: Operator, now: float) -> Path:
    """Put a complete task and its verify key into the leader's task directory; the task appears last, and at once.

    Raises:
        UsageError: not the leader, signatures missing, the key is missing or not the task's, round one has closed.
        SignatureError, TaskError: a signature that does not verify.
    """
    signed = read_task(path)
    task = signed.task
    if task.leader.aggregator_id != operator.aggregator_id:
        raise UsageError(
            f"the task is led by {task.leader.aggregator_id!r}; submit it there, not at {operator.aggregator_id!r}"
        )
    missing = [one.aggregator_id for one, s in zip(task.aggregators, signed.signatures, strict=True) if not s]
    if missing:
        raise UsageError(f"{path} is not signed by {', '.join(missing)}; each operator runs 'fleetcount task sign'")
    verify_signed_task(signed, operator.trusted)
    if now >= task.round_one_closes:
        raise UsageError(f"round one closed at {utc(task.round_one_closes)}; create the task anew")
    verify_key = read_bytes(verify_key_path(path), largest=_VERIFY_KEY_BYTES)
    if hashlib.sha256(verify_key).digest() != task.verify_key_digest:
        raise UsageError(f"{verify_key_path(path)} is not the key the task commits to")
    directory = operator.config.aggregator.task_directory
    target = directory / path.name
    if target.exists():
        raise UsageError(f"{target} exists already; give the task another file name")
    write_file(verify_key_path(target), verify_key, mode=0o600)
    write_file(target, encode_signed_task(signed), overwrite=False)
    return target


def zooms_words(release: Release) -> str:
    """Return what is said of the zooms of a release, nothing of one."""
    return f", counted at {release.zooms} zooms in one report" if release.zooms > 1 else ""


def utc(moment: float) -> str:
    """Return a time as people read it: ISO 8601, UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe_task(signed: SignedTask, *, explain: bool = False) -> list[str]:
    """Return what a person wants to know before signing, a line each; `explain` adds every adversary."""
    task = signed.task
    who = [
        f"{one.aggregator_id} ({one.operator}){'' if signature else ', not signed yet'}"
        for one, signature in zip(task.aggregators, signed.signatures, strict=True)
    ]
    values = "1 value" if task.values == 1 else f"{task.values} values"
    lines = [
        f"task {task.name!r} {task.task_id}",
        f"asks {task.signal} in {values}, mode {task.mode.name.lower()}, deployment {task.deployment!r}",
        f"round one {utc(task.round_one_opens)} to {utc(task.round_one_closes)}, "
        f"last close {utc(task.round_two_closes)}",
        f"at least {task.min_batch_size} reports; release {task.release.kind.name.lower()}{zooms_words(task.release)}",
        "aggregators: " + "; ".join(who),
    ]
    return [*lines, *privacy_lines(task.design, task.design.views(), explain=explain)]
