"""Tasks without a question around them, as an aggregator's directory still takes them: NAME.task, NAME.verify-key."""

from collections.abc import Sequence
from pathlib import Path

from fleetcount.files import write_file
from fleetcount.question_files import operator_of
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_protocol.task.signed_file import encode_signed_task, signed_task
from fleetcount_protocol.task.signing import sign_task
from fleetcount_protocol.task.task import Task

__all__ = ["hand_in"]


def hand_in(path: Path, task: Task, verify_key: bytes, configs: Sequence[Path]) -> Path:
    """Write a task that the operator of every configuration signed, and a copy for the first's aggregator, the leader.

    Return `path`, beside which its verify key lies.
    """
    operators = [operator_of(config) for config in configs]
    keys = [load_signing_key(one.config.keys.signing_key_file) for one in operators]
    signed = encode_signed_task(signed_task(task, tuple(sign_task(task, key) for key in keys)))
    for file in (path, operators[0].config.aggregator.task_directory / path.name):
        write_file(file.with_suffix(".verify-key"), verify_key, mode=0o600)
        write_file(file, signed)
    return path
