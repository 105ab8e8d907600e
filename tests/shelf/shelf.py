"""The shelf: its entries, the ways in which a file of it comes, and what a mutation of one does at a door."""

import gzip
import random
import resource
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tests.shelf.doors import DOORS, UNPACKING, Asked, Told, plain, through

HERE: Final = Path(__file__).parent
FILES: Final = HERE / "files"
_CPU_S: Final = 1.0
_MEMORY_KIB: Final = 300 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One file at one door: what is asked, and what should come, or (None) the words of the refusal."""

    file: str
    door: str
    asked: Asked
    gives: Told | None
    says: str = ""

    @property
    def path(self) -> Path:
        return FILES / self.file


@lru_cache(maxsize=1)
def sources() -> Mapping[str, Any]:
    """Return SOURCES.toml; decimals are exact, as in a scenario."""
    return tomllib.loads((HERE / "SOURCES.toml").read_text(encoding="utf-8"), parse_float=Decimal)


def visits() -> list[Visit]:
    """Return every file at every door: taken, refused with words, or refused at all."""
    said, found = sources(), []
    for entry in said["file"]:
        takes, refused = entry.get("takes", {}), entry.get("refused", {})
        assert not takes.keys() & refused.keys(), entry["name"]
        for door in DOORS:
            told = takes.get(door, refused.get(door, {}))
            asked, gives = (_named(said, part, told.get(part)) for part in ("asked", "gives"))
            expected = plain(gives) if door in takes else None
            found.append(Visit(file=entry["name"], door=door, asked=asked, gives=expected, says=told.get("says", "")))
    return found


def _named(said: Mapping[str, Any], part: str, told: Any) -> dict[str, Any]:
    return said[part][told] if isinstance(told, str) else told or {}


def _same(content: bytes) -> bytes:
    return content


def _two_members(content: bytes) -> bytes:
    half = len(content) // 2
    return gzip.compress(content[:half], mtime=0) + gzip.compress(content[half:], mtime=0)


def _marked(content: bytes) -> bytes:
    return b"\xef\xbb\xbf" + content


def _crlf(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _blank_line(content: bytes) -> bytes:
    return content + (b"\r\n" if b"\r\n" in content else b"\n")


FOLDERS: Final = ("edge=E9", "count=7", "vehicle_id=4", "[1]", "a*b?", "Städte im Süden, 100 % 'x'")
_WAYS: Final[Mapping[str, tuple[Callable[[bytes], bytes], Callable[[Visit], bool]]]] = {
    "two members of gzip": (_two_members, lambda visit: visit.door in UNPACKING),
    "a byte-order mark": (_marked, lambda visit: not visit.path.read_bytes().startswith(b"\xef\xbb\xbf")),
    "CRLF": (_crlf, lambda _: True),
    "a blank last line": (_blank_line, lambda _: True),
}


def ways(visit: Visit, folder: Path) -> Iterator[tuple[str, Path]]:
    """Put the file of a visit under a folder in one way after the other; yield the way and the path."""
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
        yield f"in {name}", Path(shutil.copy(visit.path, folder / name))
    suffixes = visit.path.name[visit.path.name.index(".") :]
    yield "another name", Path(shutil.copy(visit.path, folder / f"ä b [2] {{c}} #'d'{suffixes}"))
    content = visit.path.read_bytes()
    if not _is_text(content):
        return
    for way, (change, fits) in _WAYS.items():
        if fits(visit):
            path = folder / visit.path.name
            path.write_bytes(change(content))
            yield way, path


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def mutations(door: str, number: int, folder: Path) -> None:
    """Let `number` mutations of the files that a door takes come in: cut, or with bytes flipped, drawn from the door.

    Raises:
        AssertionError: one ends otherwise than taken or refused, takes over 1 s of CPU or leaves a file behind; all
            together take over 300 MB.
    """
    taken = [visit for visit in visits() if visit.door == door and visit.gives is not None]
    draw = random.Random(door)
    for visit in taken:  # Loads the libraries that the door needs.
        through(door, visit.path, visit.asked)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for run in range(number):
        visit = draw.choice(taken)
        path = folder / visit.path.name
        path.write_bytes(_mutated(visit.path.read_bytes(), draw))
        began = time.process_time()
        told, line = through(door, path, visit.asked)
        took = time.process_time() - began
        assert told is not None or line, f"{door} of {visit.file}, mutation {run}"
        assert took < _CPU_S, f"{door} of {visit.file}, mutation {run}: {took:.1f} s"
        assert [one.name for one in folder.iterdir()] == [path.name], f"{door} of {visit.file}, mutation {run}"
        path.unlink()
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert more < _MEMORY_KIB, f"{door}: {more} KiB"


def _mutated(content: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return content[: draw.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)
