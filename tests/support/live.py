"""Deployments that several tests share: starting real processes costs more than asking them one more question."""

from collections.abc import Iterator

import pytest
from fleetcount_aggregator.verification.choice import combine, new_batch_verifier
from fleetcount_kernel.proofs import VerifierSetting
from fleetcount_protocol.vdaf.prio3 import prio3_two_round

from tests.support.broker import LiveBroker, embedded_broker
from tests.support.deployment import LiveDeployment


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have machine code for verification before any window opens: the first process on a machine compiles a minute."""
    if session.items and not session.config.option.collectonly:
        prio3 = prio3_two_round(3, 2)
        new_batch_verifier(VerifierSetting(prio3=prio3, verify_key=bytes(32), ctx=b"", aggregator=0))
        combine(prio3, b"", [b""] * prio3.shares)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """The embedded MQTT broker in a process of its own."""
    one = embedded_broker(tmp_path_factory.mktemp("broker"))
    yield one
    one.stop()


def _deployed(count: int, broker: LiveBroker, factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    deployment = LiveDeployment(factory.mktemp(f"k{count}"), count, name=f"k{count}", broker=broker.started)
    try:
        yield deployment.start_all()
        codes = deployment.stop_all()
    finally:
        for child in deployment.children:
            child.reap()
    assert codes == [0] * count
    assert deployment.troubles() == []


@pytest.fixture(scope="session")
def pair(broker: LiveBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    """Two aggregators that take reports over gRPC and MQTT."""
    yield from _deployed(2, broker, tmp_path_factory)


@pytest.fixture(scope="session")
def trio(broker: LiveBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    """Three aggregators that take reports over gRPC and MQTT."""
    yield from _deployed(3, broker, tmp_path_factory)
