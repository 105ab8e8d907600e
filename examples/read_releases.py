"""Read a folder that `fleetcount question release` keeps: python read_releases.py DIRECTORY [TRUSTED.toml].

Signatures and the chain are checked when it is read; with TRUSTED.toml against keys that you trust.
"""

import sys

import fleetcount as fc

if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("read_releases.py: give the directory of records, and if you have them the keys you trust")
    question = fc.read_releases(sys.argv[1], fc.read_keys(sys.argv[2]) if sys.argv[2:] else None)
    first, last = question.windows[0], question.windows[-1]
    print(question)
    print(f"all cells in window {last}: {question.sum(windows=last)}")
    if first != last:
        print(f"window {last} less window {first}: {question.difference(first, last)}")
    print(question.budget())
    print(question.statement)
