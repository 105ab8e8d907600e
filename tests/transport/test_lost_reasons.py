"""Why a broker or a server was not reached is said in words, as the libraries of this machine really fail."""

import asyncio
from contextlib import AsyncExitStack

import aiomqtt
import grpc.aio
import pytest
from fleetcount_transport.lost_reasons import broker_reason, call_reason
from fleetcount_transport.mqtt_connection import MqttConnection
from fleetcount_transport.mqtt_packets import ViolationError

from tests.support.listening import listening

NOT_AUTHORISED = bytes([0x20, 2, 0, 5])
"""A CONNACK with return code 5 (MQTT 3.1.1, section 3.2.2.3)."""


async def answering(stack: AsyncExitStack, answer: bytes) -> str:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        await reader.read()
        writer.close()

    return f"127.0.0.1:{await stack.enter_async_context(listening(serve))}"


async def left(broker: str, timeout_s: float = 60) -> str:
    connection = MqttConnection(
        broker, identifier="c", arrived=lambda _: True, timeout=timeout_s, username="car", password="hunter2"
    )
    with pytest.raises(aiomqtt.MqttError) as caught:
        await connection.__aenter__()
    return broker_reason(caught.value)


async def test_a_broker_that_is_not_reached_is_said_in_words_without_the_login() -> None:
    async with AsyncExitStack() as stack:
        refusing, silent = await answering(stack, NOT_AUTHORISED), await answering(stack, b"")
        said = {
            "refused": await left("127.0.0.1:1"),
            "not authorised": await left(refusing),
            "timed out": await left(silent, 0.3),
        }

    assert [word for word, text in said.items() if not text.startswith(word)] == [], said
    assert "hunter2" not in str(said)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("host unknown", "[Errno -2] Name or service not known"),
        (
            "TLS failed: its certificate is not accepted here",
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
        ),
        (
            "TLS failed: its certificate is not yet valid by this clock",
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid",
        ),
        (
            "TLS failed: its certificate has ended by this clock",
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired",
        ),
        ("TLS failed: it does not accept this certificate", "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca"),
        (
            "TLS failed: it does not accept this certificate",
            "[SSL: SSLV3_ALERT_CERTIFICATE_REVOKED] sslv3 alert certificate revoked",
        ),
        ("TLS failed", "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version"),
        ("no route there", "[Errno 101] Network is unreachable"),
        (
            "hung up during the handshake: it may not accept this certificate",
            "the broker closed the connection",
        ),
    ],
)
def test_what_resolver_tls_and_network_say_has_its_word(word: str, text: str) -> None:
    assert broker_reason(aiomqtt.MqttError(text)) == f"{word} ({text})"


async def test_a_call_that_does_not_get_there_has_its_cause_beside_its_code() -> None:
    async with AsyncExitStack() as stack:
        plain = await answering(stack, b"no TLS here")
        credentials = grpc.ssl_channel_credentials()
        said: dict[str, str] = {}
        for word, channel in {
            "refused": grpc.aio.insecure_channel("127.0.0.1:1"),
            "TLS failed": grpc.aio.secure_channel(plain, credentials),
        }.items():
            async with channel:
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/a/b")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"", timeout=5)
                said[word] = call_reason(caught.value)

    assert [word for word, text in said.items() if not text.startswith(f"unavailable ({word}")] == [], said


def test_who_is_not_served_for_its_certificate_reads_which_one_that_was() -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, grpc.aio.Metadata(), grpc.aio.Metadata(), "secret")

    assert call_reason(error) == "permission_denied (not authorised)"
    assert call_reason(error, "issuer CN=x") == (
        "permission_denied (not authorised: this certificate is denied there, or is none of whom it serves"
        " (issuer CN=x))"
    )


def test_what_a_peer_says_itself_is_not_quoted() -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "tls secret")

    assert call_reason(error) == "internal"
    assert broker_reason(ViolationError("no greeting belongs here")) == "no greeting belongs here"
    assert broker_reason(aiomqtt.MqttError("")) == "MqttError"
