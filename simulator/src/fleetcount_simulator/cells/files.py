"""Files of data opened strictly: plain or gzip-compressed, as bytes or as lines of UTF-8 text, in bounded memory.

It must not know what the lines mean.
"""

import gzip
import io
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from fleetcount_simulator.errors import ScenarioError

MAX_LINE: Final = 8192
"""Characters of one line at most: no line, and so no field, can fill the memory."""
_GZIP: Final = b"\x1f\x8b"


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading; one that starts like gzip is decompressed as it is read.

    Raises:
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return cast("BinaryIO", gzip.open(path, "rb")) if packed else path.open("rb")


@contextmanager
def same_file(path: Path) -> Generator[None]:
    """Refuse a file that changes while the block reads it.

    Raises:
        ScenarioError: its size or its modification time has changed.
    """
    before = path.stat()
    yield
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ScenarioError(f"{path.name} changed while it was read")


def lines(path: Path) -> Generator[str]:
    """Yield the lines of a text, with their ends, without a byte-order mark.

    A caller that keeps it in a variable closes it (contextlib.closing), because the traceback of an error would hold
    the file open.

    Raises:
        ScenarioError: a file that cannot be read or changes, truncated compression, bytes that are no UTF-8, a NUL, a
            line longer than `MAX_LINE`; with the line.
    """
    number = 0
    try:
        with same_file(path), open_bytes(path) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
            while line := text.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise ScenarioError(f"{path.name} line {number}: longer than {MAX_LINE} characters")
                if "\0" in line:
                    raise ScenarioError(f"{path.name} line {number}: holds a NUL character")
                yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeDecodeError as error:
        # Text is decoded a few thousand bytes ahead, so the line is where the reading stood.
        raise ScenarioError(f"{path.name} line {number + 1} or soon after: not UTF-8 text ({error.reason})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ScenarioError(f"{path.name} line {number + 1}: cannot be read: {error}") from error
