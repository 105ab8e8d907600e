"""A whole number as an option, and files that are read and written; other numbers are in `numbers`."""

import os
import re
import secrets
import stat
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from fleetcount_protocol.errors import MachineError, UsageError

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_SHOWN: Final = 40


def shown_text(text: str) -> str:
    """Return what was given, in quotes, at most 40 characters of it."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def parse_count(text: str, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`.

    Raises:
        ValueError: not a whole number in ASCII digits, or outside the range; the message names both.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{shown_text(text)} is not a whole number; it must be {low} to {high}")
    value = int(text)
    if not low <= value <= high:
        raise ValueError(f"{shown_text(text)} is out of range; it must be {low} to {high}")
    return value


class Count(click.ParamType[int]):
    """A whole number from `low` to `high`."""

    name = "count"

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the whole number, or fail naming the value and the range."""
        if isinstance(value, int):
            return value
        try:
            return parse_count(str(value), self.low, self.high)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SEED: Final = Count(0, 2**64 - 1)
"""A scenario's seed: 64 bits."""
PATH: Final = click.Path(path_type=Path)
"""What names a file or a folder; whether it can be read or written is for the command to say."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


def config_option(text: str, name: str = "config", *, metavar: str = "FILE.toml") -> Callable[[_Command], _Command]:
    """Return the option `--config`, which must be given; `name` is the command's parameter, `text` the help."""
    return click.option("--config", name, required=True, metavar=metavar, type=PATH, help=text)


# Reading what the user names and writing what the user asked for: bounded in size, and whole or not at all.
#
# Refuses by name anything but a regular readable file; writes through a temporary name and a rename.

MAX_TEXT_BYTES: Final = 64 * 2**20
_GZIP: Final = 16 + zlib.MAX_WBITS
"""zlib's word for a gzip file."""


def read_bytes(path: Path, *, largest: int = MAX_TEXT_BYTES) -> bytes:
    """Return the whole content of a regular file.

    Raises:
        UsageError: missing, a directory, a pipe or device, unreadable, empty, or larger than `largest` bytes.
    """
    try:
        # Opening a pipe for reading would wait without end for its writer: O_NONBLOCK, then look at what was opened.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown_path(path)} cannot be read: {reason_of(error)}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UsageError(f"{shown_path(path)} is {kind_of_file(status.st_mode)}, not a file")
    with os.fdopen(descriptor, "rb") as file:
        if not 1 <= status.st_size <= largest:
            raise UsageError(f"{shown_path(path)} has {status.st_size} bytes; it must have 1 to {largest}")
        content = file.read(largest + 1)
    if not 1 <= len(content) <= largest:
        raise UsageError(f"{shown_path(path)} has {len(content)} bytes; it must have 1 to {largest}")
    return content


def read_text(path: Path, *, largest: int = MAX_TEXT_BYTES) -> str:
    """Return a regular file's content as UTF-8 text without NUL and without the byte-order mark that it may begin with.

    A file whose name ends in .gz is unpacked (RFC 1952), to `largest` bytes at most.

    Raises:
        UsageError: as `read_bytes`, or not packed whole, or not UTF-8, or with a NUL inside.
    """
    content = read_bytes(path, largest=largest)
    if path.suffix == ".gz":
        content = _unpacked(path, content, largest)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown_path(path)} is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise UsageError(f"{shown_path(path)} holds a NUL character at position {text.index(chr(0))}")
    return text


def _unpacked(path: Path, content: bytes, largest: int) -> bytes:
    """Return what a gzip file of one member holds, without unpacking more than `largest` bytes and one."""
    unpacking = zlib.decompressobj(wbits=_GZIP)
    try:
        whole = unpacking.decompress(content, largest + 1)
    except zlib.error as error:
        raise UsageError(f"{shown_path(path)} is no gzip file: {error}") from error
    if len(whole) > largest:
        raise UsageError(f"{shown_path(path)} holds more than {largest} bytes; it must hold at most so many")
    if not unpacking.eof or unpacking.unused_data:
        raise UsageError(f"{shown_path(path)} is no gzip file: its end is missing, or something stands behind it")
    return whole


def write_file(path: Path, content: bytes, *, mode: int = 0o644, overwrite: bool = True) -> None:
    """Write a file whole or not at all, durable before it appears under its name.

    Raises:
        UsageError: it exists and `overwrite` is False, or its directory does not take files.
        MachineError: the disk does not take it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        raise UsageError(f"{shown_path(path)} cannot be written: {reason_of(error)}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _appear(temporary, path, overwrite=overwrite)
    except FileExistsError as error:
        raise UsageError(f"{shown_path(path)} exists already; nothing was written") from error
    except OSError as error:
        raise MachineError(f"{shown_path(path)} cannot be written: {reason_of(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _appear(temporary: Path, path: Path, *, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(path)
    else:
        path.hardlink_to(temporary)


def check_output_directory(path: Path, *, fresh: bool = False) -> None:
    """Refuse an output directory that cannot take files, before any work is done; leave nothing there.

    Raises:
        UsageError: it is no directory, or not writable, or (with `fresh`) it is there and not empty.
    """
    if "\0" in str(path):
        raise UsageError(f"output {shown_path(path)} holds a NUL character")
    if path.is_symlink() and not path.exists():
        raise UsageError(f"output {shown_path(path)} is a broken link")
    try:
        if path.exists():
            if not path.is_dir():
                raise UsageError(f"output {shown_path(path)} exists and is not a directory")
            # What a run stages in it, or a killed one left, is nothing of the user's.
            if fresh and any(not one.name.startswith(stage_prefix(path)) for one in path.iterdir()):
                raise UsageError(f"output {shown_path(path)} is not empty; choose a new directory")
            place = path
        else:
            place = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise UsageError(f"output {shown_path(path)}: {shown_path(place)} is not a directory one can write to")
        # What may be written to does not always take a directory: /proc, a name with no room for the stage's ending.
        Path(tempfile.mkdtemp(prefix=stage_prefix(path), dir=place)).rmdir()
    except (OSError, ValueError) as error:
        raise UsageError(f"output {shown_path(path)} cannot be used: {reason_of(error)}") from error


def stage_prefix(target: Path) -> str:
    """Return how the names of `target`'s staged directories begin."""
    return f".{target.name or 'output'}."


def shown_path(path: Path) -> str:
    """Return a path in quotes, at most 120 characters of it."""
    text = str(path)
    return repr(text if len(text) <= 120 else text[:119] + "…")


def reason_of(error: Exception) -> str:
    """Return what an error of the system says, without its number."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[0].lower() + text[1:] if text else type(error).__name__


def kind_of_file(mode: int) -> str:
    """Return what a file with this mode is, with its article."""
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")
