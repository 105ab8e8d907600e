#!/usr/bin/env python3
"""Refuses names and headings that do not exist: in the documents, and in the docstrings and comments of the code.

A back-quoted text counts as a name when it is an identifier, a dotted path, a call or subscript of one, a file or
folder, a word with hyphens, an option, or a `fleetcount` or `make` command. A name exists when code has it (the type
checkers see to it that it is defined there), when a one-word string, TOML file, .proto file or Makefile spells it, or
when it stands in `OUTSIDE`. In a dotted path each part must be defined in the class or module before it. Other texts
(formulas, bytes, shell lines) and fenced blocks are not looked at. What only tests define exists for tests alone.

A relative link to a heading names it as a forge that shows the repository does, so that it leads there too: in small
letters, without punctuation, a hyphen for a space. The documentation site takes these anchors and others as well.

It must not import what it checks: sources are read as text.
"""

import builtins
import keyword
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from os.path import normpath
from pathlib import Path

CODE = ("*/src/fleetcount*/**/*.py", "benchmarks/*.py", "scripts/*.py")
DOCUMENTS = ("*.md", "docs/**/*.md")
LINKING = (*DOCUMENTS, "*/**/*.md")
TEXTS = ("*/**/*.toml", "*.toml", "protos/**/*.proto", "Makefile", ".ci/*", "deploy/*", "deploy/*/*", "scripts/*")
OUTSIDE = ("sized8", "sized16", "sized32", "i64", "u64", "null", "max_message_bytes", "utils", "coverage-study")
"""The notation of docs/wire.md, JSON, and names that stand for any name."""
DATA = (
    ".csv",
    ".gz",
    ".json",
    ".toml",
    ".db",
    ".svg",
    ".png",
    ".html",
    ".xml",
    ".log",
    ".lost",
    ".parquet",
    ".digests",
)
INPUTS = (".data", ".test", ".sumocfg", ".key", ".question", ".seed", ".window")
"""Endings of files that a user has or a command writes; they need not exist here."""

_TOKEN = re.compile(
    r'(?P<prose>^[ ]*"""(?:[^\\]|\\.)*?""")'  # A docstring stands alone on its line.
    r'|(?P<text>"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')'
    r"|(?P<comment>#[^\n]*)",
    re.MULTILINE | re.DOTALL,
)
_WORD = re.compile(r"--[a-z][a-z-]*[a-z]|[A-Za-z_]\w*(?:-\w+)*")
_DEFINED = re.compile(
    r"^[ ]*(?:async )?(?:def|class) (\w+)|^[ ]*(?:self\.)?(\w+)(?:: [^=\n]+)?(?: = |$)|^[ ]*(\w+): |import (\w+)",
    re.MULTILINE,
)
_CLASS = re.compile(r"^([ ]*)class (\w+)(?:\((.*?)\))?:(.*\n(?:\1[ ]+.*\n|\n)*)", re.MULTILINE)
_QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_DOTTED = re.compile(r"(_{0,2}[A-Za-z]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\)|\[.*\])?")
_HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^):#]*)#([^)]*)\)")
_ROOM = re.compile(r"src/fleetcount(_\w+)?/")


@dataclass(kw_only=True)
class Names:
    """What exists: words of any kind, what each class and module defines, the tables of TOML files, the paths."""

    words: set[str] = field(default_factory=lambda: {*dir(builtins), *keyword.kwlist, *OUTSIDE})
    modules: dict[str, set[str]] = field(default_factory=dict)
    classes: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, set[str]] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)

    def has(self, text: str) -> bool:
        """Return whether a back-quoted text is no name, or the name of something that exists."""
        if text in self.words or text.endswith(DATA + INPUTS):
            return True
        if re.fullmatch(r"FLEETCOUNT_[A-Z_]+", text):  # A setting as a variable of the environment: table and key.
            return all(part.lower() in self.words for part in text.removeprefix("FLEETCOUNT_").split("__"))
        if text.startswith(("fleetcount ", "make ", "--")):
            return all(word in self.words for word in _command_words(text))
        if re.fullmatch(r"[\w./*-]+(\.py|\.md|\.proto|/)", text):
            return self._has_path(text) or text.removesuffix("/") in self.words  # A folder that a command makes.
        if dotted := _DOTTED.fullmatch(text):
            return self._has_dotted(dotted[1].split("."))
        return not re.fullmatch(r"[a-z]+(-[a-z]+)+", text)

    def _has_path(self, text: str) -> bool:
        wanted = re.compile(rf"(.*/)?{re.escape(text.removeprefix('./')).replace(re.escape('*'), '[^/]*')}")
        return any(wanted.fullmatch(path) for path in self.paths)

    def _has_dotted(self, parts: list[str]) -> bool:
        if any(part not in self.words for part in parts):
            return False
        return all(self._holds(owner, part) for owner, part in pairwise(parts))

    def _holds(self, owner: str, part: str) -> bool:
        """Return whether a class or module defines a name; True for an owner that is neither: a variable, a table."""
        if owner in self.classes:
            return part in self._members(owner)
        return owner in self.tables or owner not in self.modules or part in self.modules[owner]

    def _members(self, owner: str) -> set[str]:
        inherited = (self._members(base) for base in self.bases.get(owner, set()) - {owner})
        return self.classes.get(owner, set()).union(*inherited)

    def add_module(self, path: Path, source: str) -> None:
        """Take up a module, what it and its classes define, and the words that it uses or spells."""
        folder, module = (path.parent.parent, path.parent.name) if path.stem == "__init__" else (path.parent, path.stem)
        spelt = (match["text"].strip("\"'") for match in _TOKEN.finditer(source) if match["text"])
        code = _TOKEN.sub(lambda match: re.match(" *", match[0])[0] + '""', source)
        self.modules.setdefault(folder.name, set()).add(module)
        self.modules.setdefault(folder.parent.name, set()).add(folder.name)
        self.modules.setdefault(module, set()).update(_definitions(code), _imported(code))
        for match in _CLASS.finditer(code):
            members = _definitions(match[4])
            self.classes.setdefault(match[2], {"name", "value"}).update(members)
            self.words.update(map(str.lower, members))  # Members of enumerations are written small outside of code.
            self.bases.setdefault(match[2], set()).update(_WORD.findall(match[3] or ""))
        self.words |= {folder.name, module, *_WORD.findall(code)}
        self.words.update(*map(_spelt, spelt))

    def add_text(self, text: str) -> None:
        """Take up the words of a file that is neither Python nor a document."""
        self.words.update(_WORD.findall(text))
        self.tables.update(re.findall(r"^\[+(\w+)", text, re.MULTILINE))


def _definitions(code: str) -> set[str]:
    return {name for match in _DEFINED.finditer(code) for name in match.groups() if name}


def _imported(code: str) -> set[str]:
    return {
        word
        for statement in re.findall(r"^(?:from \S+ )?import (\([^)]*\)|.*)", code, re.MULTILINE)
        for word in _WORD.findall(statement)
    }


def _spelt(text: str) -> list[str]:
    """Return what a string spells: itself when it is one word, else those of its words that no sentence has."""
    words = _WORD.findall(text)
    if not re.search(r"\s", text):
        return [text, text + "_total"]  # A counter of this name is shown with that ending.
    return [word for word in words if "_" in word or word.startswith("--")]


def _command_words(text: str) -> list[str]:
    """Return the subcommands and options of a command line, without values and place holders."""
    subcommands = re.match(r"[a-z]+(?: [a-z]+)*", text)
    return [*(subcommands[0].split() if subcommands else ()), *re.findall(r"--[a-z][a-z-]*[a-z]", text)]


def prose_of(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield what a reader reads in a file, each piece with the number of its first line."""
    if path.suffix == ".md":
        yield 1, _FENCE.sub(lambda block: "\n" * block[0].count("\n"), source)
        return
    for match in _TOKEN.finditer(source):
        if "`" in (text := match["prose"] or match["comment"] or ""):
            yield source.count("\n", 0, match.start()) + 1, text


def unknown_names(names: Names, path: Path, source: str) -> Iterator[str]:
    """Yield a line for each back-quoted name in the prose of a file that does not exist."""
    for first, text in prose_of(path, source):
        for quoted in _QUOTED.finditer(text):
            if not names.has(quoted[1]):
                yield f"{path}:{first + text.count(chr(10), 0, quoted.start())}: `{quoted[1]}` does not exist"


def anchors_of(page: str) -> Iterator[str]:
    """Yield the anchor of each heading of a page; one that comes again has its number behind it."""
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(_FENCE.sub("", page)):
        anchor = re.sub(r"[^\w -]", "", re.sub(r"\]\(.*?\)", "", heading)).lower().replace(" ", "-")
        yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
        seen[anchor] += 1


def dead_links(path: Path, pages: dict[Path, str]) -> Iterator[str]:
    """Yield a line for each link from a page to a heading that no page has under this anchor."""
    for link in _LINK.finditer(text := next(prose_of(path, pages[path]))[1]):
        target = Path(normpath(path.parent / link[1])) if link[1] else path
        if link[2] not in anchors_of(pages.get(target, "")):
            yield f"{path}:{text.count(chr(10), 0, link.start()) + 1}: no heading {link[1]}#{link[2]}"


def _read(root: Path, *patterns: str) -> dict[Path, str]:
    found = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in found}


def _paths(root: Path) -> set[str]:
    """Return the files, and the folders with a slash, each also without `src` and the name of its package."""
    found = [path for folder in root.glob("[!.]*") for path in (folder, *folder.rglob("*"))]
    paths = {str(path.relative_to(root)) + "/" * path.is_dir() for path in found}
    return paths | {_ROOM.sub("", path) for path in paths}


def check(root: Path) -> list[str]:
    """Return a line for each back-quoted name and each heading that a link names below `root` and does not exist."""
    sources = _read(root, *CODE)
    names = Names(paths=_paths(root))
    for text in _read(root, *TEXTS).values():
        names.add_text(text)
    for path, source in sources.items():
        names.add_module(path, source)
    found = [
        line for path, text in (sources | _read(root, *DOCUMENTS)).items() for line in unknown_names(names, path, text)
    ]
    pages = {path: text for path, text in _read(root, *LINKING).items() if path.parts[0] != "out"}
    found += [line for path in pages for line in dead_links(path, pages)]
    tests = _read(root, "tests/**/*.py")
    for path, source in tests.items():
        names.add_module(path, source)
    return found + [line for path, source in tests.items() for line in unknown_names(names, path, source)]


if __name__ == "__main__":
    lines = check(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parent.parent)
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
