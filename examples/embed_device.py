"""A device inside a program: answers what is on offer now, to the end of its windows, and says what became of it.

python embed_device.py DEVICE.toml. Without `once=True` it would answer until it is stopped.
"""

import sys
from itertools import count

from fleetcount_client import Device

KMH = count(63, 9)


def read_speed() -> float | None:
    """Return the speed in km/h; stands for the vehicle's bus. None would be answered as "none of them"."""
    return float(next(KMH))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("embed_device.py: give one argument, the device's configuration")
    for outcome in Device.from_config(sys.argv[1]).run({"Vehicle.Speed": read_speed}, once=True):
        print(f"{outcome.kind.value}: {outcome.window_id.hex()}")
