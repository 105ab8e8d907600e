"""Deployments that several tests share: starting real processes costs more than asking them one more question."""

from collections.abc import Iterator

import pytest

from tests.support.broker import EmbeddedBroker
from tests.support.deployment import LiveDeployment


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The embedded MQTT broker in a process of its own."""
    one = EmbeddedBroker(tmp_path_factory.mktemp("broker"))
    one.start()
    yield one
    one.stop()


def _deployed(count: int, broker: EmbeddedBroker, factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    deployment = LiveDeployment(factory.mktemp(f"k{count}"), count, name=f"k{count}", broker=broker.address)
    try:
        yield deployment.start_all()
        codes = deployment.stop_all()
    finally:
        for child in deployment.children:
            child.reap()
    assert codes == [0] * count
    assert deployment.troubles() == []


@pytest.fixture(scope="session")
def pair(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    """Two aggregators that take reports over gRPC and MQTT."""
    yield from _deployed(2, broker, tmp_path_factory)


@pytest.fixture(scope="session")
def trio(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    """Three aggregators that take reports over gRPC and MQTT."""
    yield from _deployed(3, broker, tmp_path_factory)
