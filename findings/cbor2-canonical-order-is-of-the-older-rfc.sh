#!/bin/sh
# cbor2 6.3.0 names RFC 8949 as what it serialises, and orders the keys of canonical=True by the RFC that this one replaced.
#
# Seen on Python 3.11: of the eight keys by which RFC 8949, section 4.2.1, shows its order (10, 100, -1, "z", "aa", [100],
# [-1], false) dumps(..., canonical=True) writes 10, -1, false, 100, "z", [-1], "aa", [100]: shorter keys first, as RFC 7049
# had it; 8949 keeps that in 4.2.3 for those who need it, and requires the order of bytes of all others. Keys of one byte
# agree: a map of 1 to 23, of negative numbers and short texts has one encoding by both, and one with a key above 23
# beside a negative one, as COSE's headers may have, has two. So a hash or a signature over a record that is made here and
# by another's deterministic encoder agrees until such a key comes. Exits 0 while this is so, 1 when it has changed, 2 when
# it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q cbor2==6.3.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import hashlib
import sys

import cbor2

SHOWN = [10, 100, -1, "z", "aa", (100,), (-1,), False]
WRITTEN = [10, -1, False, 100, "z", (-1,), "aa", (100,)]


def bytewise(record):
    """Encode a map of fewer than 24 keys as RFC 8949, section 4.2.1, has it: keys by their bytes."""
    pairs = sorted((cbor2.dumps(key, canonical=True), cbor2.dumps(value, canonical=True)) for key, value in record.items())
    return bytes([0xA0 + len(pairs)]) + b"".join(key + value for key, value in pairs)


record = dict.fromkeys(reversed(SHOWN), 0)
canonical = cbor2.dumps(record, canonical=True)
order, other = list(cbor2.loads(canonical)), list(cbor2.loads(bytewise(record)))
print(f"canonical=True: {order}")
print(f"RFC 8949, 4.2.1: {other}")
same = {}
for small in ({1: "cell", 23: "count", -1: "kind", "z": 0}, {24: "cell", -1: "kind"}):
    ours, theirs = cbor2.dumps(small, canonical=True), bytewise(small)
    same[ours == theirs] = small
    hashes = [hashlib.sha256(made).hexdigest()[:8] for made in (ours, theirs)]
    print(f"{small}: {ours.hex()} and {theirs.hex()}; SHA-256 begins {hashes}")
as_seen = (order, other) == (WRITTEN, SHOWN) and 23 in same.get(True, {}) and 24 in same.get(False, {})
sys.exit(0 if as_seen else 1)
PYTHON
