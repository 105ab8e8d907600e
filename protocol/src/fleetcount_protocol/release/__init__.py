"""The names of a release in one place to import from: the record, its JSON form, and the commitments.

The code is in `record`, `record_json`, `chain` and `commitments`.
"""

from fleetcount_protocol.release.chain import ChainLink, MissingWindow
from fleetcount_protocol.release.commitments import (
    centred_lift,
    check_commitment,
    check_range,
    commit_to,
    commitment,
    noise_bound,
    open_noised_shares,
)
from fleetcount_protocol.release.record import (
    Cell,
    NoisedParticipants,
    NoiseLaw,
    ReleaseRecord,
    decode_record,
    encode_record,
    noise_laws,
    sign_record,
    verify_record_signatures,
)
from fleetcount_protocol.release.record_json import decimal_text, record_from_json, record_to_json, sides_words

__all__ = [
    "Cell",
    "ChainLink",
    "MissingWindow",
    "NoiseLaw",
    "NoisedParticipants",
    "ReleaseRecord",
    "centred_lift",
    "check_commitment",
    "check_range",
    "commit_to",
    "commitment",
    "decimal_text",
    "decode_record",
    "encode_record",
    "noise_bound",
    "noise_laws",
    "open_noised_shares",
    "record_from_json",
    "record_to_json",
    "sides_words",
    "sign_record",
    "verify_record_signatures",
]
