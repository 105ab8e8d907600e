#!/bin/sh
# betterproto 1.2.5 and betterproto2 0.10.0 write a duration of -0.5 s as +0.5 s, and -90.25 s as -89.25 s.
#
# Seen on Python 3.11 with betterproto2-compiler 0.10.1 and protobuf 7.36.2 as the reader: of a negative timedelta the
# seconds are cut towards zero and the nanoseconds counted from the whole second below, one second too many in all. So -0.5 s
# is sent as 0 s and +500,000,000 ns, a valid half second ahead, and -1.5 s as -1 s and +500,000,000 ns, whose signs differ,
# which duration.proto forbids, and which is read as -0.5 s. The JSON of betterproto 1.2.5 says -0.500s and -1.500s, and whole
# seconds are right everywhere. The offset of a clock and a bus that is early are sent as numbers of milliseconds. Exits 0
# while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install -q betterproto==1.2.5 betterproto2==0.10.0 betterproto2-compiler==0.10.1 protobuf==7.36.2 \
    > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import dataclasses
import importlib.metadata
import sys
from datetime import timedelta

import betterproto
from betterproto2_compiler.lib.google import protobuf as second
from google.protobuf import duration_pb2


@dataclasses.dataclass
class Delay(betterproto.Message):
    """A message whose first field is a google.protobuf.Duration."""

    by: timedelta = betterproto.message_field(1)


def read(written: bytes) -> tuple[int, int, float]:
    """Return what protobuf reads of a Duration: its seconds, its nanoseconds and both together."""
    duration = duration_pb2.Duration.FromString(written)
    return duration.seconds, duration.nanos, duration.seconds + duration.nanos / 1e9


names = "betterproto", "betterproto2", "betterproto2-compiler", "protobuf"
print({name: importlib.metadata.version(name) for name in names})
sent, got, words = (0.5, -0.5, -1.5, -90.25, -90.0), {}, {}
for seconds in sent:
    delay = Delay(by=timedelta(seconds=seconds))
    framed = bytes(delay)  # the tag of field 1, the length, the Duration
    of_first, of_second = framed[2:], bytes(second.Duration.from_timedelta(delay.by))
    reference = duration_pb2.Duration()
    reference.FromTimedelta(delay.by)
    words[seconds] = delay.to_dict()["by"]
    back = Delay().parse(framed).by.total_seconds()
    got[seconds] = [read(of_first)[2], read(of_second)[2], back, read(reference.SerializeToString())[2]]
    print(f"{seconds} s: {read(of_first)} by betterproto, {read(of_second)} by betterproto2, in JSON {words[seconds]};", end=" ")
    print(f"betterproto reads {back}; protobuf itself keeps {got[seconds][3]}")
as_seen = got == {
    0.5: [0.5, 0.5, 0.5, 0.5],
    -0.5: [0.5, 0.5, 0.5, -0.5],
    -1.5: [-0.5, -0.5, -0.5, -1.5],
    -90.25: [-89.25, -89.25, -89.25, -90.25],
    -90.0: [-90.0] * 4,
}
sys.exit(0 if as_seen and words[-0.5] == "-0.500s" and words[-1.5] == "-1.500s" else 1)
PYTHON
