"""Real aggregators, real devices, real connections: the exact difference is what the coins say, cell by cell."""

import asyncio
from fractions import Fraction
from pathlib import Path

import pytest
from fleetcount_mechanisms.sampling import SamplingDie
from fleetcount_protocol.window.fields import UploadStyle

from tests.support.deployment import Deployed
from tests.support.fleet import Fleet, offer_of
from tests.support.oracle import check_release

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("fixture", ["pair", "trio"])
async def test_every_cell_is_what_the_coins_say_over_both_transports(
    request: pytest.FixtureRequest, tmp_path: Path, fixture: str
) -> None:
    deployment: Deployed = request.getfixturevalue(fixture)

    async def counted_over(kind: str, seed: int) -> None:
        # Twice the usual: 48 devices with three parts each answer at once, beside all other tests.
        window = deployment.ask(24, windows_s=(4.0, 4.0))
        fleet = Fleet(deployment, tmp_path, window.mechanism, [kind], seed=seed)

        await fleet.answer(await offer_of(deployment, window, kind))

        assert fleet.failures == []
        assert await check_release(deployment, window, fleet) == fleet.devices
        rounds = {live.truth: live.rounds for live in fleet.devices}
        assert any(pair == (0, truth) for truth, pair in rounds.items())
        assert any(one == two for one, two in rounds.values())

    await asyncio.gather(counted_over("grpc", 1), counted_over("mqtt", 2))


async def test_both_transports_meet_in_one_set_and_an_envelope_carries_both_rounds(
    pair: Deployed, tmp_path: Path
) -> None:
    die = SamplingDie.uniform(Fraction(1, 3), 16)
    window = pair.ask(16, mechanism=die, upload_style=UploadStyle.ONE_ENVELOPE, windows_s=(2.0, 0.0))
    fleet = Fleet(pair, tmp_path, die, ["grpc", "mqtt"])

    await fleet.answer(await offer_of(pair, window))

    assert fleet.failures == []
    assert await check_release(pair, window, fleet) == fleet.devices
