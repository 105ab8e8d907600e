"""The package's public names exist, and importing the package loads none of them."""

import subprocess
import sys

import fleetcount_protocol
import pytest


def test_every_public_name_is_importable() -> None:
    assert all(getattr(fleetcount_protocol, name) is not None for name in fleetcount_protocol.__all__)
    assert set(fleetcount_protocol.__all__) <= set(dir(fleetcount_protocol))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Tusk"):
        _ = fleetcount_protocol.Tusk


def test_the_package_alone_loads_nothing() -> None:
    code = "import sys, fleetcount_protocol; print([m for m in sys.modules if m.startswith('fleetcount_protocol.')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"
