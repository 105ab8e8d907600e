"""Read a folder that `fleetcount question release` keeps: python read_releases.py DIRECTORY [TRUSTED.toml].

Signatures and the chain are checked when it is read; with TRUSTED.toml against keys that you trust.
"""

import sys

import fleetcount as fc

if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("read_releases.py: give the directory of records, and if you have them the keys you trust")
    releases = fc.read_releases(sys.argv[1], fc.read_keys(sys.argv[2]) if sys.argv[2:] else None)
    first, last = releases.windows[0], releases.windows[-1]
    print(releases)
    print(f"all cells in window {last}: {releases.sum(windows=last)}")
    if first != last:
        print(f"window {last} less window {first}: {releases.difference(first, last)}")
    print(releases.budget())
    print(releases.statement)
