"""Every cap on sizes, counts and times of the wire, in one place (docs/wire.md, "Limits").

Numbers only; the code that applies a limit raises its own error.
"""

from typing import Final

from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, MOST_AGGREGATORS

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_S: Final = 86_400

# Window.
MIN_AGGREGATORS: Final = FEWEST_AGGREGATORS
MAX_AGGREGATORS: Final = MOST_AGGREGATORS
MIN_OPERATORS: Final = 2
MIN_BATCH_SIZE: Final = 2
MAX_TEXT_BYTES: Final = 200
MAX_ENDPOINT_BYTES: Final = 261
"""A DNS name (253 bytes) or a bracketed IPv6 address, ':' and five digits, with room to spare."""
MAX_TERM: Final = 2**63 - 1
"""Largest numerator (absolute) and denominator of a fraction in a window."""
MAX_EPSILON: Final = 10
MAX_UNIX_TIME: Final = 253_402_300_799
"""9999-12-31T23:59:59Z, the last time that every calendar library can print; a time in milliseconds is above it."""
MAX_WINDOW_S: Final = 31 * DAY_S
MAX_WINDOW_LIFETIME_S: Final = 100 * DAY_S
MAX_WINDOW_BYTES: Final = MIB
MAX_ZOOMS: Final = 8
"""Bins one by one to 128 together; of squares 6, from 64 by 32, the largest such grid, to 2 by 1."""
MAX_DIMENSIONS: Final = 3
"""How many signals a table has at most."""
VERIFY_KEY_BYTES: Final = 32
ED25519_SIGNATURE_BYTES: Final = 64
"""RFC 8032, section 5.1.6: of windows, question, key lists, orders and records."""

# Question.
MAX_QUESTION_BYTES: Final = MAX_WINDOW_BYTES - KIB
"""A window has at most 20 bytes more than its question."""
MAX_QUESTION_LIFETIME_S: Final = 400 * DAY_S
MAX_DRILL_DOWN_LEVELS: Final = 8
MAX_QUESTIONS: Final = 16_384
"""How many questions one aggregator stores, and how many of its offers one device reads."""
MAX_QUESTIONS_PER_LIST: Final = 64
MAX_QUESTION_LIST_BYTES: Final = 3 * MIB
MAX_LISTED_KEYS: Final = 32
MAX_KEY_LIST_BYTES: Final = 40 * KIB
"""A hybrid key takes 1,235 bytes with its id and its times."""
MAX_ORDERS_PER_QUESTION: Final = 256
MAX_ORDER_BYTES: Final = 128
MAX_QUESTION_WINDOWS: Final = 2**16
"""More than one each ten minutes for a year; a year of hours is 8,784."""

# Sessions.
SESSION_SECRET_BYTES: Final = 32
MAX_SESSION_LIFETIME_S: Final = MAX_WINDOW_LIFETIME_S
SESSION_EXPIRY_STEP_S: Final = 3_600
"""Sessions end on the hour: an odd second would tell one device's sessions from others'."""
MAX_CERTIFICATE_BYTES: Final = 4 * KIB
MAX_SIGNATURE_BYTES: Final = 80
"""A DER signature of P-256 has at most 72 bytes."""
MAX_SESSION_BYTES: Final = 8 * KIB
MAX_SESSIONS_PER_REQUEST: Final = 64
MAX_KEY_NUMBER: Final = 2**16 - 1
"""How many windows a session has keys for; then the device opens another one."""
MAX_KEYS_AHEAD: Final = 256
"""Most keys that an aggregator derives past its chain's last: 0.4 ms at most, as much as checking a few signatures."""
MAX_KEPT_WINDOW_KEYS: Final = 64
"""Window keys of one session that an aggregator keeps open below the number its chain has reached."""

# Reports.
AES_GCM_TAG_BYTES: Final = 16
MAX_INSTALMENT_BYTES: Final = 256 * KIB
"""An upload of one instalment, as it is published on a report topic."""
MAX_CIPHERTEXT_BYTES: Final = 200 * KIB
"""The longest share part: 4,096 explicit words for each round, three proofs, blind and tag stay far below."""
MAX_PUBLIC_SHARE_BYTES: Final = 32 * MAX_AGGREGATORS
MAX_BATCH_BYTES: Final = MIB
MAX_INSTALMENTS_PER_BATCH: Final = 2_048

# Between aggregators.
MAX_PEER_MESSAGE_BYTES: Final = 3 * MIB
MAX_REPORTS_PER_PEER_BATCH: Final = 512
MAX_VERIFIER_BYTES: Final = 5 * KIB
"""A verifier share at 4,096 bits in chunks of 64: three times 130 elements and a joint-randomness part, 3.2 KB."""
MAX_IDS_PER_CHUNK: Final = 16_384
MAX_REPORTS_PER_WINDOW: Final = 2**30
SET_LEAVES: Final = 256
"""The number of leaves of a set digest: one for each value of the first byte of a report id."""
MAX_REPORTS_PER_LEAF: Final = 2**24
"""Four times the mean of the largest window. A limit a leaf, because a process may store some of the leaves only."""
COMMITMENT_BLIND_BYTES: Final = 32
MAX_LEDGER_ROWS: Final = 2**63 - 1
"""The largest integer of a database column: a peer's number of rows is stored as its high-water mark."""
MAX_REASON_BYTES: Final = 200

# Release.
MAX_RECORD_BYTES: Final = 2 * MIB
MAX_JSON_BYTES: Final = 8 * MIB

# MQTT.
MAX_MQTT_PACKET_BYTES: Final = MAX_RECORD_BYTES + 4 * KIB
"""The largest message, a record, with its signatures, its topic and the packet's head. A longer packet ends the
connection unread, so a broker must refuse longer packets from every sender (deploy/mosquitto.conf)."""
