"""XML read in pieces by expat: elements with their attributes, depth and line, in bounded memory.

It must not expand anything: a DOCTYPE is refused before its first declaration, so there are no entities but the five
of XML and nothing is ever fetched. It keeps no tree.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.parsers import expat

from fleetcount_simulator.cells.files import open_bytes, same_file
from fleetcount_simulator.errors import ScenarioError

_CHUNK: Final = 1 << 16
_MAX_PENDING: Final = 1 << 22
"""Bytes of one tag at most: expat holds a tag until it is whole."""

Element = tuple[int, str, dict[str, str], int]
"""Depth (the root is 0), name, attributes, line."""


def elements(path: Path, root: str) -> Iterator[Element]:
    """Yield every element of a plain or gzip-compressed XML file as it starts.

    Raises:
        ScenarioError: no such root, a DOCTYPE, truncated, not well-formed, an encoding that Python or expat does not
            read, a tag of more than 4 MiB; with the line.
    """
    parser = expat.ParserCreate()
    reader = _Reader(parser, path.name, root)
    fed = 0
    try:
        with same_file(path), open_bytes(path) as file:
            while chunk := file.read(_CHUNK):
                parser.Parse(chunk, False)
                fed += len(chunk)
                if fed - parser.CurrentByteIndex > _MAX_PENDING:
                    raise reader.refusal(f"a tag of more than {_MAX_PENDING} bytes")
                yield from reader.drained()
            parser.Parse(b"", True)
            yield from reader.drained()
    except expat.ExpatError as error:
        message = expat.ErrorString(error.code)
        raise ScenarioError(f"{path.name} line {error.lineno}: {message} (truncated?)") from error
    except (LookupError, ValueError) as error:
        # Of an encoding that expat does not know it asks Python's codecs, which know some that are none of XML.
        raise reader.refusal(f"its encoding cannot be read: {str(error)[:80]}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise reader.refusal(f"cannot be read: {error}") from error


class _Reader:
    """Collects the elements that expat reports until `drained` returns them."""

    def __init__(self, parser: expat.XMLParserType, name: str, root: str) -> None:
        self._parser, self._name, self._root = parser, name, root
        self._depth = 0
        self._found: list[Element] = []
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype

    def refusal(self, problem: str) -> ScenarioError:
        return ScenarioError(f"{self._name} line {self._parser.CurrentLineNumber}: {problem}")

    def drained(self) -> list[Element]:
        found, self._found = self._found, []
        return found

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._depth == 0 and name != self._root:
            raise self.refusal(f"the root element is {name[:40]!r}, not {self._root!r}")
        self._found.append((self._depth, name, attributes, self._parser.CurrentLineNumber))
        self._depth += 1

    def _end(self, name: str) -> None:
        self._depth -= 1

    def _doctype(self, name: str, system: str | None, public: str | None, internal: bool) -> None:
        raise self.refusal("a DOCTYPE, which is not accepted (no entity is ever expanded or fetched)")
