"""Deployments that several tests share: starting real processes costs more than asking them one more question.

One broker, one pair, one trio and one target serve a whole run, whatever its workers (`tests/support/shared.py`). A
test asks them side by side with tests of other workers, so it counts nothing that these could cause as well: it looks
at its own window, and at the names of its own devices. What breaks, restarts or arms an aggregator has its own.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fleetcount_aggregator.verification.choice import combine, new_batch_verifier
from fleetcount_kernel.proofs import VerifierSetting
from fleetcount_protocol.vdaf.prio3 import prio3_two_round

from tests.support.broker import RunningBroker, embedded_broker
from tests.support.deployment import Deployed, LiveDeployment, troubles_of
from tests.support.shared import alone, once, shared

_COUNTS = {"pair": 2, "trio": 3, "target": 2}


def _compile() -> None:
    prio3 = prio3_two_round(3, 2)
    new_batch_verifier(VerifierSetting(prio3=prio3, verify_key=bytes(32), ctx=b"", aggregator=0))
    combine(prio3, b"", [b""] * prio3.shares)


@pytest.fixture(scope="session", autouse=True)
def _compiled(pytestconfig: pytest.Config) -> None:
    """Have machine code for verification before any window opens: the first process on a machine compiles a minute."""
    once(pytestconfig, "compiled", _compile)


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> RunningBroker:
    """The embedded MQTT broker of the run, in a process of its own."""
    return RunningBroker(**shared(pytestconfig, "broker"))


@pytest.fixture(scope="session")
def pair(broker: RunningBroker, _compiled: None, pytestconfig: pytest.Config) -> Deployed:
    """Two aggregators that take reports over gRPC and MQTT."""
    return Deployed.of(shared(pytestconfig, "pair"))


@pytest.fixture(scope="session")
def trio(broker: RunningBroker, _compiled: None, pytestconfig: pytest.Config) -> Deployed:
    """Three aggregators that take reports over gRPC and MQTT."""
    return Deployed.of(shared(pytestconfig, "trio"))


@pytest.fixture
def target(broker: RunningBroker, _compiled: None, pytestconfig: pytest.Config) -> Iterator[Deployed]:
    """Two aggregators for who floods them or measures their memory: one test at a time has them for itself."""
    with alone(pytestconfig, "use of the target"):
        yield Deployed.of(shared(pytestconfig, "target"))


# In a host.


@contextmanager
def hosted_broker(directory: Path, found: list[str]) -> Iterator[dict[str, Any]]:
    """Hold the broker; gives its description."""
    one = embedded_broker(directory)
    try:
        one.child.follow()
        yield {"address": one.started.address, "pid": one.child.pid, "log": one.child.log}
        one.child.terminate()
        found += [f"the broker ended with code {code}" for code in [one.child.ended()] if code != 0]
    finally:
        one.child.reap()


@contextmanager
def hosted_deployment(kind: str, directory: Path, found: list[str]) -> Iterator[dict[str, Any]]:
    """Hold aggregators; gives their description."""
    count = _COUNTS[kind]
    at = RunningBroker(**_beside(directory, "broker"))
    deployment = LiveDeployment(
        directory, count, name=kind, broker=at.started, largest_epsilon=100, compiled=kind == "pair"
    )
    try:
        deployment.start_all()
        for child in deployment.children:
            child.follow()
        yield deployment.description()
        codes = deployment.stop_all()
        found += [f"the aggregators ended with codes {codes}"] if any(codes) else []
        found += [line for child in deployment.children for line in troubles_of(child)]
    finally:
        for child in deployment.children:
            child.reap()


def _beside(directory: Path, kind: str) -> Any:
    """Return the description of what another host of the run holds."""
    return pickle.loads((directory.parent / kind / "description").read_bytes())
