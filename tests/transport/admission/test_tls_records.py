"""What is no TLS is told from what is not complete yet, and neither needs a server."""

import ssl

import pytest
from fleetcount_transport.admission.tls_records import Flight, flight_of


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_client_hello_is_whole_at_its_last_byte() -> None:
    hello = client_hello()

    assert {flight_of(hello[:length]) for length in range(len(hello))} == {Flight.PART}
    assert flight_of(hello) is Flight.WHOLE
    assert flight_of(hello + b"more") is Flight.WHOLE


def test_a_change_of_ciphers_alone_is_nothing_to_answer() -> None:
    change = b"\x14\x03\x03\x00\x01\x01"

    assert flight_of(change) is Flight.PART
    assert flight_of(change + b"\x17\x03\x03\x00\x01") is Flight.PART
    assert flight_of(change + b"\x17\x03\x03\x00\x01x") is Flight.WHOLE


@pytest.mark.parametrize(
    "said",
    [b"PRI * HTTP/2.0", b"G", b"\x16\x02\x00\x00\x01x", b"\x16\x03\x01\xff\xff", b"\x14\x03\x03\x00\x01\x01\x18"],
)
def test_what_is_no_tls_is_foreign_at_once(said: bytes) -> None:
    assert flight_of(said) is Flight.FOREIGN
