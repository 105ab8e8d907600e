#!/bin/sh
# dpkt 1.9.8, scapy 2.8.0 and python-pcapng 2.1.1 read frames of one second, of three CAN buses in a pcapng file, hours apart.
#
# Seen on Python 3.11: pcapng says of each interface in what steps its times count (if_tsresol) and how many seconds are to
# be added to them (if_tsoffset). A file of three buses has a frame of each within one second: the first counts microseconds,
# the second nanoseconds, the third microseconds behind an offset of an hour. dpkt takes steps and offset of the first for
# all, so the second frame is 1000 times as far from 1970, in the year 58,885, and the third an hour early. scapy and
# python-pcapng know the steps of each and leave the offset out, though python-pcapng lists it among the options: the third
# frame is an hour early. Nothing is said, and all three read a capture of one bus without the option alike. So buses that
# are merged into one file are brought to one resolution first, without offsets. Exits 0 while this is so, 1 when it has
# changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q dpkt==1.9.8 scapy==2.8.0 python-pcapng==2.1.1 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
cd "$folder"
"$folder/venv/bin/python" - << 'PYTHON'
import sys
from pathlib import Path
from struct import pack

import dpkt
import pcapng
from scapy.layers import can
from scapy.utils import PcapNgReader

SOCKETCAN = 227
FRAME = bytes.fromhex("00000123 01000000 ff00000000000000")
SECOND = 1796086800


def block(kind: int, body: bytes) -> bytes:
    length = len(body) + 12
    return pack("<II", kind, length) + body + pack("<I", length)


def interface(options: bytes = b"") -> bytes:
    return block(1, pack("<HHI", SOCKETCAN, 0, 0) + options + pack("<HH", 0, 0))


def packet(bus: int, ticks: int) -> bytes:
    return block(6, pack("<IIIII", bus, ticks >> 32, ticks & 0xFFFFFFFF, len(FRAME), len(FRAME)) + FRAME)


nanoseconds = pack("<HHBxxx", 9, 1, 9)
an_hour_more = pack("<HHq", 14, 8, 3600)
header = block(0x0A0D0D0A, pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
first = packet(0, SECOND * 10**6 + 250_000)
others = packet(1, SECOND * 10**9 + 500_000_000) + packet(2, (SECOND - 3600) * 10**6 + 750_000)
Path("one.pcapng").write_bytes(header + interface() + first)
Path("three.pcapng").write_bytes(header + interface() + interface(nanoseconds) + interface(an_hour_more) + first + others)


def with_dpkt(name):
    with open(name, "rb") as file:
        return [time for time, _ in dpkt.pcapng.Reader(file)]


def with_pcapng(name):
    with open(name, "rb") as file:
        return [one.timestamp for one in pcapng.FileScanner(file) if hasattr(one, "timestamp")]


def with_scapy(name):
    with PcapNgReader(name) as reader:
        return [float(frame.time) for frame in reader if isinstance(frame, can.CAN)]


as_seen = True
for reader in (with_dpkt, with_pcapng, with_scapy):
    alone, times = ([time - SECOND for time in reader(name)] for name in ("one.pcapng", "three.pcapng"))
    print(f"{reader.__name__}: seconds after {SECOND} of one bus: {alone}; of three: {times}; written: 0.25, 0.5, 0.75")
    as_seen &= alone == [0.25] and times[0] == 0.25 and times[2] == 0.75 - 3600
    as_seen &= times[1] > 1e12 if reader is with_dpkt else times[1] == 0.5
sys.exit(0 if as_seen else 1)
PYTHON
