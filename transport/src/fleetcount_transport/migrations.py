"""Tables with a number: what makes them in a new database, and what brings an older one up, in one transaction.

Serves an aggregator's store and a device's spool alike. It knows no table and no engine.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

NEW: Final = 0
"""The version of a database without tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The tables of one version. `steps`: by version, the statements that make its tables those of the next one."""

    version: int
    tables: Sequence[str]
    steps: Mapping[int, Sequence[str]]

    def knows(self, version: int) -> bool:
        """Whether a database of this version is a new one, the present one or one that can be brought up."""
        return version in (NEW, self.version) or version in self.steps

    def serves(self, version: int) -> bool:
        """Whether a program of this schema does its work on a database of a version as it is: its own or the last."""
        return version == self.version or (version == self.version - 1 and version in self.steps)

    def statements(self, version: int) -> list[str]:
        """Return what makes a database of a version that it `knows` one of the present version."""
        if version == NEW:
            return list(self.tables)
        return [statement for one in range(version, self.version) for statement in self.steps[one]]

    @property
    def span(self) -> str:
        """The versions that it `knows`, as an error names them: "2", or "1 to 2" if there is a step."""
        oldest = min(self.steps, default=self.version)
        return str(self.version) if oldest == self.version else f"{oldest} to {self.version}"


def bring_up(
    schema: Schema,
    *,
    begin: str,
    find: Callable[[], int],
    execute: Callable[[str], object],
    note: Callable[[int], object],
) -> None:
    """Make a database one of the present version: all of it, or it stays as it is, whatever ends the process.

    `begin` starts a transaction under a lock that no second process gets; `find` returns the version, and raises what
    its caller raises for one that the schema does not know; `note` writes down a version. Raises what they raise.
    """
    if find() == schema.version:
        return
    execute(begin)
    try:
        # Another process may have been faster: what counts is found under the lock.
        found = find()
        if found != schema.version:
            for statement in schema.statements(found):
                execute(statement)
            note(schema.version)
        execute("COMMIT")
    except BaseException:
        # On a connection that is lost there is nothing to take back.
        with suppress(Exception):
            execute("ROLLBACK")
        raise
