#!/bin/sh
# ocpp 2.1.0 renames the keys of the data that a DataTransfer carries: "associated_cell" arrives as "as_so_ciated_cell".
#
# Seen on Python 3.11: OCPP 2.0.1 lets a charger and the system it belongs to send each other any JSON object as the data of a
# DataTransfer. The library makes camelCase of the protocol's names on the way out and snake_case on the way in, as it says of
# messages, and does so within that object too. So a car's report {"associated_cell": 7, "cell_9": 1, "PM": 12, "pm": 3,
# "kWh": 40} is sent with the keys asSoCiatedCell and cell9 ("soc" becomes "SoC" wherever it stands in a name) and read with
# as_so_ciated_cell, cell9, pm and k_wh. Of PM and pm, one key in lower case, the later is kept and the other's value is lost;
# "max_speed" and "maxSpeed" are one on the way out. Nothing is said. Other programs on the line read names that nobody chose.
# Data that is one text, of JSON, arrives whole. Exits 0 while this is so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q ocpp==2.1.0 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" - << 'PYTHON'
import asyncio
import json
import logging
import sys

from ocpp.routing import on
from ocpp.v201 import ChargePoint, call, call_result

logging.disable(logging.CRITICAL)
REPORT = {"associated_cell": 7, "cell_9": 1, "PM": 12, "pm": 3, "kWh": 40}
BOTH = {"max_speed": 50, "maxSpeed": 130}


class Line:
    """One end of a line of two ends, which takes the place of a WebSocket."""

    def __init__(self):
        self.waiting, self.sent = asyncio.Queue(), []

    async def recv(self):
        return await self.waiting.get()

    async def send(self, text):
        self.sent.append(json.loads(text))
        await self.other.waiting.put(text)


class System(ChargePoint):
    """What receives, and answers with what it has read."""

    @on("DataTransfer")
    async def on_data(self, data, **_):
        read.append(data)
        return call_result.DataTransfer(status="Accepted", data=data)


async def main():
    here, there = Line(), Line()
    here.other, there.other = there, here
    charger = ChargePoint("charger", here)
    running = [asyncio.create_task(one.start()) for one in (charger, System("system", there))]
    async with asyncio.timeout(30):
        for data in (REPORT, BOTH, json.dumps(REPORT)):
            answered.append((await charger.call(call.DataTransfer(vendor_id="fleet.example", data=data))).data)
    for task in running:
        task.cancel()
    return [packet[3]["data"] for packet in here.sent]


read, answered = [], []
sent = asyncio.run(main())
for given, line, there, back in zip((REPORT, BOTH, json.dumps(REPORT)), sent, read, answered):
    print(f"given {given}\n  on the line {line}\n  read {there}\n  answered with the same, read {back}")
renamed = {"as_so_ciated_cell": 7, "cell9": 1, "pm": 3, "k_wh": 40}
as_seen = (
    sent[:2] == [{"asSoCiatedCell": 7, "cell9": 1, "PM": 12, "pm": 3, "kWh": 40}, {"maxSpeed": 130}]
    and read[:2] == answered[:2] == [renamed, {"max_speed": 130}]
    and sent[2] == read[2] == answered[2] == json.dumps(REPORT)
)
sys.exit(0 if as_seen else 1)
PYTHON
