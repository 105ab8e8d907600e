"""The package's public interface: every name is there, at home in one module, and costs nothing before it is used."""

import subprocess
import sys
from importlib import import_module

import fleetcount_analysis
import pytest

MODULES = ["channels", "errors", "estimates", "figures", "inference", "intervals", "noise", "one_sided", "remap"]


def test_every_public_name_of_the_modules_is_public_in_the_package() -> None:
    expected = {name for module in MODULES for name in import_module(f"fleetcount_analysis.{module}").__all__}

    assert set(fleetcount_analysis.__all__) == expected == set(dir(fleetcount_analysis))
    assert len(fleetcount_analysis.__all__) == len(expected)


@pytest.mark.parametrize("module", MODULES)
def test_a_public_name_is_the_modules_own(module: str) -> None:
    home = import_module(f"fleetcount_analysis.{module}")

    assert all(getattr(fleetcount_analysis, name) is getattr(home, name) for name in home.__all__)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'interval'"):
        _ = fleetcount_analysis.interval


def test_an_error_class_loads_no_scipy() -> None:
    code = "import fleetcount_analysis as f, sys; f.RangeError; print(sorted({'numpy', 'scipy'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
