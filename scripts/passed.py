"""Which tests have passed on this very tree: `scripts/test` says so, `scripts/mutants` need not run them again."""

import hashlib
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

RECORD: Final = Path("out") / "tests.jsonl"
"""Where a run of the tests writes a line for each (tests/support/record.py), behind a line about the tree."""


def state_of(tree: Path) -> str | None:
    """Return a digest of every file of a tree that git does not ignore; None where git does not know the tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=tree,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        return None
    digest = hashlib.sha256()
    for name in sorted(set(listed.stdout.split(b"\0")) - {b""}):
        path = tree / name.decode()
        content = path.read_bytes() if path.is_file() else b""
        digest.update(name + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()


class Passed:
    """The tests that passed in the last run, if the tree is still what it was then, and the seconds that each took."""

    def __init__(self, tree: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        lines = (tree / RECORD).read_text().splitlines() if (tree / RECORD).exists() else []
        rows = [json.loads(line) for line in lines]
        if not rows or rows[0].get("tree") is None or rows[0]["tree"] != state_of(tree):
            return
        for row in rows[1:]:
            if row.get("outcome") == "passed":
                self._seconds[row["ends"]] = row["seconds"]
            elif "outcome" in row:
                self._failed.add(row["ends"])

    def known(self, test: str) -> bool:
        """Return whether a test, or every test of a file or with any parameters, is known to pass."""
        return bool(self._parts(self._seconds, test)) and not self._parts(self._failed, test)

    def seconds(self, test: str) -> float:
        """Return what a known test took."""
        return sum(self._seconds[part] for part in self._parts(self._seconds, test))

    @staticmethod
    def _parts(ended: Iterable[str], test: str) -> list[str]:
        return [one for one in ended if one == test or one.startswith((f"{test}[", f"{test}::"))]
