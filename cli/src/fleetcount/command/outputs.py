"""Where results go: checked before any work is done, and whole or not there afterwards."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

from fleetcount_protocol.errors import MachineError, UsageError

from fleetcount.command.options import check_output_directory, kind_of_file, reason_of, shown_path, stage_prefix


def check_output_file(path: Path) -> None:
    """Refuse an output file that `write_file` could not write, before any work is done; create nothing.

    Raises:
        UsageError: it is there and no regular file, or its directory is missing or not writable.
    """
    if "\0" in str(path):
        raise UsageError(f"output {shown_path(path)} holds a NUL character")
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"output {shown_path(path)} is {kind_of_file(path.stat().st_mode)}, not a file")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(
                f"output {shown_path(path)}: {shown_path(path.parent)} is not a directory one can write to"
            )
    except OSError as error:
        raise UsageError(f"output {shown_path(path)} cannot be used: {reason_of(error)}") from error


@contextlib.contextmanager
def staged_directory(target: Path) -> Generator[Path]:
    """Give a hidden directory; on success its files move into `target`, on failure nothing stays.

    It lies in `target` if that is there, whose parent may be of another file system or not writable, and else beside.

    Raises:
        UsageError: the output cannot be written to.
        MachineError: the disk does not take it.
    """
    check_output_directory(target)
    existed = target.exists()
    stage = (
        target.absolute() if existed else target.absolute().parent
    ) / f"{stage_prefix(target)}{secrets.token_hex(4)}"
    try:
        stage.mkdir(parents=True)
        yield stage
        target.mkdir(exist_ok=True)
        for file in sorted(stage.iterdir()):
            file.replace(target / file.name)
    except OSError as error:
        if not existed:
            with contextlib.suppress(OSError):
                target.rmdir()
        raise MachineError(f"output {shown_path(target)} cannot be written: {reason_of(error)}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
