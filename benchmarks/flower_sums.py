"""Secure sums of one-hot vectors of nine values by Flower's SecAgg+, in its simulation engine; for `bench_network.py`.

    .venv/flower/bin/python benchmarks/flower_sums.py CLIENTS SUMS

Runs in an environment of Flower's own, which fleetcount shares nothing with. Every client is Flower's, with its own
SecAgg+ in front; the server's strategy adds nothing to Flower's but to write down what came out. Each key is shared
among three clients, of whom two can restore it: the fewest that Flower allows. Prints one line of JSON: for each sum
the seconds since the start, the clients in it, and the values.
"""

import argparse
import json
import time
from typing import Any, Final

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

VALUES: Final = 9
_STARTED: Final = time.perf_counter()


class OneHot(NumPyClient):  # type: ignore[misc]  # Flower is not where types are checked
    """A client with a truth, 0 for none: its vector has a one at the truth's place."""

    def __init__(self, truth: int) -> None:
        self._truth = truth

    def fit(self, parameters: Any, config: Any) -> Any:
        """Return the vector, with weight 1."""
        return [np.eye(VALUES + 1)[self._truth, 1:]], 1, {}


class WrittenDown(FedAvg):  # type: ignore[misc]  # As above.
    """Flower's averaging, whose results are kept."""

    def __init__(self, clients: int) -> None:
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=ndarrays_to_parameters([np.zeros(VALUES)]),
        )
        self.sums: list[dict[str, Any]] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average as Flower does; the sum is the average times the clients."""
        averaged = super().aggregate_fit(server_round, results, failures)
        values = parameters_to_ndarrays(averaged[0])[0] * len(results)
        after_s = time.perf_counter() - _STARTED
        self.sums.append({"after_s": after_s, "clients": len(results), "values": [round(one, 3) for one in values]})
        return averaged


def main() -> None:
    """Ask for the sums, one round of SecAgg+ each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", type=int)
    parser.add_argument("sums", type=int)
    asked = parser.parse_args()
    server, strategy = ServerApp(), WrittenDown(asked.clients)

    @server.main()  # type: ignore[untyped-decorator]  # As above.
    def _(grid: Any, context: Any) -> None:
        config = ServerConfig(num_rounds=asked.sums)
        workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1)
        legacy = LegacyContext(context=context, config=config, strategy=strategy)
        DefaultWorkflow(fit_workflow=workflow)(grid, legacy)

    clients = ClientApp(
        client_fn=lambda context: OneHot(int(context.node_config["partition-id"]) % (VALUES + 1)).to_client(),
        mods=[secaggplus_mod],
    )
    one_core = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app=server, client_app=clients, num_supernodes=asked.clients, backend_config=one_core)
    print(json.dumps(strategy.sums))


if __name__ == "__main__":
    main()
