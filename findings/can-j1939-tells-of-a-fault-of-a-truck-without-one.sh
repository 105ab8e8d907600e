#!/bin/sh
# can-j1939 2.0.12 reads one trouble code of a truck that says it has none, and of a unit without a code another unit's.
#
# Seen on Python 3.11 with python-can 4.6.1 and numpy 2.4.6: each unit of a truck says every second which trouble codes are
# active (DM1, SAE J1939-73). One without any says so by number 0 and mode 0, an older one by all bits set. For these Dm1 hands
# its subscribers [{'spn': 0, 'fmi': 0, 'oc': 0}] and [{'spn': 524287, 'fmi': 31, 'oc': 127}]: one code, as of a unit with one.
# What the library itself sends of no code is a frame of two bytes, the lamps, which its own reader holds to be too short: it
# logs an error and hands out the codes of the frame before once more, under the address of the unit that sent the short one.
# So of a fleet in which every truck is sound every truck has a fault, and the brakes have the engine's oil pressure. Count
# codes whose number is neither 0 nor 524287, and send eight bytes. Exits 0 while this is so, 1 when it has changed, 2 when it
# could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q can-j1939==2.0.12 python-can==4.6.1 numpy==2.4.6 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import logging
import queue
import sys

import j1939

DM1, ENGINE, BRAKES, READER = 0x18FECA00, 0x00, 0x0B, 0x80
frames, logged, told = queue.Queue(), [], []
logging.getLogger().addHandler(logging.Handler())
logging.getLogger().handlers[0].emit = lambda record: logged.append(record.getMessage())


def unit(address, send):
    """Return an electronic control unit, whose frames go to `send`, and its DM1."""
    made = j1939.ElectronicControlUnit(send_message=send)
    name = j1939.Name(arbitrary_address_capable=0, identity_number=address, manufacturer_code=1)
    application = j1939.ControllerApplication(name, address, bypass_address_claim=True)
    made.add_ca(controller_application=application)
    return made, j1939.Dm1(application)


def heard(address, data):
    """Return whose codes the reader hands out for a frame, as (address, codes), and what it logged."""
    del told[:], logged[:]
    reader.notify(DM1 | address, bytearray(data), 0.0)
    return [(sender, list(codes)) for sender, _, codes, _ in told], list(logged)


reader, trouble = unit(READER, lambda *_: None)
trouble.subscribe(lambda *what: told.append(what))
brakes, no_trouble = unit(BRAKES, lambda can_id, extended, data, fd=False: frames.put(bytes(data)))
no_trouble.start_send(lambda: ({}, []), cycletime=0.01)
short = frames.get(timeout=20)
brakes.stop()
SAID = (
    ("oil pressure low, twice", ENGINE, bytes.fromhex("00FF 6400 0102 FFFF")),
    ("no code, as the library sends it", BRAKES, short),
    ("no code", ENGINE, bytes.fromhex("00FF 0000 0000 FFFF")),
    ("no code, as older units say it", ENGINE, bytes.fromhex("00FF FFFF FFFF FFFF")),
)
seen = []
for words, address, data in SAID:
    codes, lines = heard(address, data)
    seen += codes
    print(f"{words}, from {address:#04x}, {data.hex(' ')}: told {codes}; logged {lines}")
reader.stop()
oil, none, older = ({"spn": spn, "fmi": fmi, "oc": count} for spn, fmi, count in ((100, 1, 2), (0, 0, 0), (524287, 31, 127)))
as_seen = len(short) == 2 and seen == [(ENGINE, [oil]), (BRAKES, [oil]), (ENGINE, [none]), (ENGINE, [older])]
sys.exit(0 if as_seen else 1)
PYTHON
