"""Where an aggregator's store lies: a SQLite file in its directory, or a PostgreSQL database. It opens nothing."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """`directory`: of the SQLite file and of what lies beside it; `url`: of a PostgreSQL database that has the rows."""

    directory: Path
    url: str | None = None
    password_file: Path | None = None

    @property
    def file(self) -> Path:
        """The SQLite file; files beside it are named after it, wherever the rows are."""
        return self.directory / "aggregator.db"

    @property
    def name(self) -> str:
        """How a person is told of it; a URL has no password, and what follows `?` is left out."""
        return str(self.file) if self.url is None else self.url.partition("?")[0]
