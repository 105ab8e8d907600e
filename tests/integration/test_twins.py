"""Two processes of one aggregator: the older one says so in one line, ends, and does not start again; and its clock."""

import re
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fleetcount.run.doctor import _peer
from fleetcount.run.doctor_checks import Severity
from fleetcount_aggregator.host.keys import load_signing_key
from fleetcount_aggregator.peers import PeerRefusalError
from fleetcount_aggregator.transport.grpc_peers import GrpcPeer
from fleetcount_protocol.channel.certificates import key_digest, load_certificate
from fleetcount_protocol.channel.greetings import (
    Epoch,
    Greeting,
    Meeting,
    decode_greeting,
    sign_epoch,
    sign_greeting,
)
from fleetcount_protocol.errors import PeerProblem
from fleetcount_protocol.ids import AggregatorId, WindowId

from tests.support.deployment import LiveDeployment

ALPHA, BETA = AggregatorId("alpha"), AggregatorId("beta")
REFUSED = 3


class Shows:
    """What alpha says once it has seen a newer start of beta."""

    def __init__(self, own: Epoch, known: Epoch, key: Ed25519PrivateKey) -> None:
        self.greeting, self.key = Greeting(time_ms=0, epoch=own, known=known), key
        self.heard: list[Greeting] = []

    def now(self) -> float:
        return 0.0

    def say(self, to: AggregatorId, tls_key: bytes) -> bytes:
        meeting = Meeting(caller=ALPHA, callee=to, tls_key=tls_key)
        return sign_greeting(self.greeting, meeting, self.key, is_answer=False).encode()

    async def hear_answer(self, _: AggregatorId, said: bytes, *__: object) -> None:
        self.heard.append(decode_greeting(said))


@pytest.mark.processes
@pytest.mark.timeout(120)
async def test_the_older_of_two_processes_ends_with_a_line_and_stays_down(tmp_path: Path) -> None:
    here = LiveDeployment(tmp_path / "pair")
    here.start(1)
    child = here.children[1]
    port = child.ready()["peer_port"]
    found = [await _peer(here.config(0), "beta", f"127.0.0.1:{port}", allowed) for allowed in (30.0, -1.0)]
    assert [one.severity for one in found] == [Severity.OK, Severity.FAILED]
    assert re.search(
        r"answers with its certificate; its clock is [+-]0\.\d s from this one \(give or take", found[0].text
    )
    assert "allowed: -1 s ([limits] largest_skew_s)" in found[1].text
    keys = [here.config(position).parent / "keys" for position in range(2)]
    signing = [load_signing_key(one / "signing.key") for one in keys]
    shows = Shows(sign_epoch(ALPHA, 1, bytes(8), signing[0]), sign_epoch(BETA, 40, bytes(8), signing[1]), signing[0])
    authority = (here.written.root / "ca" / "aggregators.crt").read_bytes()
    own = grpc.ssl_channel_credentials(
        authority, (keys[0] / "aggregator.key").read_bytes(), (keys[0] / "aggregator.crt").read_bytes()
    )
    peer = GrpcPeer(
        BETA,
        f"127.0.0.1:{port}",
        caller=ALPHA,
        timeout_s=5,
        credentials=own,
        greetings=shows,
        tls_key=lambda: key_digest(load_certificate(keys[0] / "aggregator.crt")),
    )

    with pytest.raises(PeerRefusalError) as refusal:
        await peer.status(WindowId(bytes(32)))
    await peer.close()

    assert refusal.value.problem is PeerProblem.BUSY
    assert [one.epoch.number for one in shows.heard] == [1]
    assert child.ended() == REFUSED
    here.start(1)
    assert child.ended() == REFUSED
    said = [line for line in child.log.read_text().splitlines() if "has been started elsewhere" in line]
    assert len(said) == 2
    assert all("peers know epoch 40 of it" in line and "--restored" in line for line in said)
