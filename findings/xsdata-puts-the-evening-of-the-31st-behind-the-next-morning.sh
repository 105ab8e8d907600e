#!/bin/sh
# xsdata 26.10 puts what happened on the evening of the 31st behind what happened on the next morning, the 1st.
#
# Seen on Python 3.11: xsdata makes Python classes of XML schemas, of those of SIRI, NeTEx and DATEX II for instance, and gives
# a moment as an XmlDateTime, "with rich comparisons and hashing" by its docstring. It compares seconds in which every month is
# a twelfth of a year, 2,629,743 s, so that the 1st begins 10:29:03 after the 31st did. 31 March 23:30 is later than 1 April
# 00:15 and the newest of three reports an older one; 31 March 10:29:03 equals 1 April 00:00:00; 23:30Z on the 31st does not
# equal 01:30+02:00 of the day after, the same moment, and where two notations of one moment are equal a set has both. XML
# Schema 1.1 part 2, to which the documentation points, orders by the time line (sections 3.3.7 and D.2.1). So the last
# thirteen and a half hours of seven months are in the next month's window too; compare to_datetime(). Exits 0 while this is
# so, 1 when it has changed, 2 when it could not be tried.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q xsdata==26.10 > "$folder/pip.log" 2>&1 || {
  tail -n 3 "$folder/pip.log" >&2
  exit 2
}
"$folder/venv/bin/python" -W error - << 'PYTHON'
import sys
from dataclasses import dataclass, field

from xsdata.formats.dataclass.parsers import XmlParser
from xsdata.models.datatype import XmlDateTime


@dataclass
class Reports:
    at: list[XmlDateTime] = field(default_factory=list, metadata={"type": "Element"})


SENT = ["2026-03-31T23:30:00Z", "2026-04-01T00:15:00Z", "2026-03-31T10:00:00Z"]
moment = XmlDateTime.from_string
reports = XmlParser().from_string(f"<Reports>{''.join(f'<at>{at}</at>' for at in SENT)}</Reports>", Reports).at
in_order = [str(at) for at in sorted(reports)]
in_time = [str(at) for at in sorted(reports, key=XmlDateTime.to_datetime)]
print(f"sorted: {in_order}, newest {max(reports)}")
print(f"sorted by to_datetime(): {in_time}")
since = [str(at) for at in reports if at >= moment("2026-04-01T00:00:00Z")]
print(f"since 1 April: {since}")
other = moment("2026-03-31T10:29:03Z") == moment("2026-04-01T00:00:00Z")
within = moment("2026-03-30T23:30:00Z"), moment("2026-03-31T01:30:00+02:00")
across = moment("2026-03-31T23:30:00Z"), moment("2026-04-01T01:30:00+02:00")
print(f"31 March 10:29:03 equals 1 April 00:00:00: {other}")
for one, two in (within, across):
    print(f"{one} equals {two}: {one == two}; of the two a set has {len({one, two})}; by to_datetime(): ", end="")
    print(one.to_datetime() == two.to_datetime())
as_seen = (
    in_order == [SENT[2], SENT[1], SENT[0]]
    and in_time == [SENT[2], SENT[0], SENT[1]]
    and since == SENT[:2]
    and other
    and within[0] == within[1]
    and len(set(within)) == 2
    and across[0] != across[1]
    and all(one.to_datetime() == two.to_datetime() for one, two in (within, across))
)
sys.exit(0 if as_seen else 1)
PYTHON
