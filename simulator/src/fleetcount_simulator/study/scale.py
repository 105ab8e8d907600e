"""The runners of a study's shards: this process, a pool of processes or a Dask cluster, with the same bytes as result.

They distribute orders and yield results as they arrive; they must not read a shard.
"""

import importlib
import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from fleetcount_simulator.errors import ProcessError, ScenarioError
from fleetcount_simulator.study.processes import carry_out
from fleetcount_simulator.study.shards import ShardOrder, run_shard

_CONNECT_S: Final = 20


class Runner(Protocol):
    """Carries out orders, in any order."""

    def run(self, orders: Sequence[ShardOrder]) -> Iterator[tuple[ShardOrder, bytes]]:
        """Yield every order with its result, as they are finished.

        Raises:
            ScenarioError: a case cannot be carried out.
            ProcessError: a worker died, or the cluster cannot be reached.
        """
        ...


class ThisProcess:
    """This process, one shard after the other."""

    def run(self, orders: Sequence[ShardOrder]) -> Iterator[tuple[ShardOrder, bytes]]:
        """See `Runner.run`."""
        for order in orders:
            yield order, run_shard(order)


class WorkerPool:
    """`workers` processes on this machine, started afresh (spawn) and ended in every case, after errors too."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, orders: Sequence[ShardOrder]) -> Iterator[tuple[ShardOrder, bytes]]:
        """See `Runner.run`."""
        return carry_out(run_shard, orders, self._workers)


class DaskCluster:
    """The workers of a Dask cluster whose scheduler listens at `address`, for example "tcp://127.0.0.1:8786".

    The workers need this package in the same version, and the scenario's data files under the same path.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, orders: Sequence[ShardOrder]) -> Iterator[tuple[ShardOrder, bytes]]:
        """See `Runner.run`."""
        with self._client() as (distributed, client):
            study = secrets.token_hex(8)  # A cluster may run other studies at once: the keys are this study's own.
            waiting = {client.submit(run_shard, one, key=f"fleetcount-{one.name}-{study}"): one for one in orders}
            try:
                completed = distributed.as_completed(list(waiting), loop=client.loop, with_results=True)
                for done, content in completed:
                    yield waiting.pop(done), content
                    done.release()
            except distributed.KilledWorker as error:
                raise ProcessError(f"a Dask worker died: {error}") from error
            finally:
                client.cancel(list(waiting))

    @contextmanager
    def _client(self) -> Generator[tuple[Any, Any]]:
        """Yield the package, which is loaded only for studies on a cluster, and a connection, closed at the end."""
        try:
            distributed: Any = importlib.import_module("distributed")
        except ModuleNotFoundError as error:
            raise ScenarioError("--dask needs the Python package 'distributed': install fleetcount[scale]") from error
        try:
            client: Any = distributed.Client(self._address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ProcessError(f"no Dask scheduler answers at {self._address}: {error}") from error
        try:
            yield distributed, client
        finally:
            client.close()
