"""The part of `fuzz_decoders` that libFuzzer runs: it never returns, so it is a process of its own. For tests only."""

import sys
from collections.abc import Sequence

import atheris

with atheris.instrument_imports(include=["fleetcount_protocol", "fleetcount_mechanisms"], enable_loader_override=False):
    from fleetcount_evidence.replay.decoders import decoders

    from tests.support.fuzz_decoders import LARGEST, check


def fuzz(options: Sequence[str], names: Sequence[str]) -> None:
    """Run libFuzzer over these decoders: an input's first byte chooses one, the rest are its bytes."""

    def one(data: bytes) -> None:
        if data and data[0] < len(names):
            check(decoders()[names[data[0]]], data[1:])

    atheris.Setup([sys.argv[0], f"-max_len={LARGEST}", *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    place = sys.argv.index("--")
    fuzz(sys.argv[1:place], sys.argv[place + 1 :])
