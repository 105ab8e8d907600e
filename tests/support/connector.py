"""Connections to a PostgreSQL database of tests, opened as an aggregator does."""

from typing import Any

import psycopg
from fleetcount_aggregator.storage.async_link import Connect


def connector(url: str) -> Connect:
    """Return what opens connections."""

    async def connect() -> "psycopg.AsyncConnection[Any]":
        return await psycopg.AsyncConnection.connect(url, autocommit=True)

    return connect
