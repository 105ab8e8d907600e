"""What `fleetcount doctor` says to an analyst: whether the aggregators that will be asked answer this certificate."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetcount_protocol.channel.certificates import CertificateAuthority, Purpose, save_credential

from tests.support.town import Town


async def test_doctor_asks_every_aggregator_as_the_analyst_will(
    fleetcount: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "dep/analyst/analyst.toml"

    async def said() -> list[str]:
        ran = await asyncio.to_thread(fleetcount, "doctor", "--config", config)
        lines = ran.out.splitlines()
        assert ran.code == any(line.startswith("FAILED") for line in lines)
        return [line for line in lines if " aggregator " in line]

    async with Town(tmp_path, fleetcount, devices=1):
        text = config.read_text()
        [alpha, beta] = re.findall(r'^grpc_endpoint = "(.+)"$', text, re.MULTILINE)
        right = await said()
        config.write_text(text.replace(f'grpc_endpoint = "{beta}"\n', ""))
        unsaid = await said()
        config.write_text(text.replace(beta, "127.0.0.1:1"))
        elsewhere = await said()
        config.write_text(text.replace(beta, alpha))
        another = await said()
        stranger = CertificateAuthority.create("strangers").issue_new(Purpose.READER, "stranger")
        save_credential(config.parent, "stranger", stranger)
        config.write_text(text.replace('"analyst.', '"stranger.'))
        refused = await said()

    assert right == [
        f"ok      aggregator alpha: {alpha} answers this certificate",
        f"ok      aggregator beta: {beta} answers this certificate",
    ]
    assert unsaid == [right[0], "note    aggregator beta: not asked: the file has no grpc_endpoint of it"]
    assert elsewhere[0] == another[0] == right[0]
    assert elsewhere[1].startswith("FAILED  aggregator beta: 127.0.0.1:1: unavailable")
    assert another[1].startswith(f"FAILED  aggregator beta: {alpha}: ")
    assert [line[:26] for line in refused] == ["FAILED  aggregator alpha: ", "FAILED  aggregator beta: 1"]
    assert all("may not accept this certificate" in line for line in refused)
