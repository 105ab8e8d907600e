"""Doors of these tests stand on told clocks as well, which do not go on by themselves after a handshake."""

import pytest


@pytest.fixture(autouse=True)
def _no_look_after_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetcount_transport.admission.handshake_gate._LOOK_S", 0)
