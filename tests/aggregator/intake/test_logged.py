"""No log line names a device, its session or its report, whatever the device does and however it ends."""

import structlog
from fleetcount_protocol.messages import Receipt, Refusal

from tests.support.aggregators import Network, TestDevice, answer_all, device_digest, device_identity


def names_of(device: TestDevice) -> dict[str, bytes]:
    """Return what tells one device from the others."""
    certificate = device_identity(device.number).certificate
    return {
        "key": bytes(device_digest(device.number)),
        "serial": certificate.serial_number.to_bytes(20, "big").lstrip(b"\0"),
        "report": bytes(device.report_id),
        **{f"session {place}": bytes(one.session_id) for place, one in enumerate(device.requests)},
    }


async def test_logs_of_a_question_from_its_beginning_to_its_end_name_no_device() -> None:
    network = Network(2)
    with structlog.testing.capture_logs() as lines:
        await network.start_all()
        window = await network.ask()
        devices = await answer_all(network, window, [(0, 1), (2, 2), (0, 3)])
        late = TestDevice(network, window, 7)
        await late.open_sessions()
        refused = await devices[0].send(devices[0].second(0, 2))  # Other bytes under a name that is known.
        refused += await late.send(late.first(0))
        repeated = await devices[1].send(devices[1].second(2, 2))
        await network.run_to_the_end(window)
    await network.stop_all()

    assert all(isinstance(one, Refusal) for one in refused)
    assert all(isinstance(one, Receipt) for one in repeated)
    assert {line["event"] for line in lines} >= {"question_installed", "window_released"}
    assert {line["window"] for line in lines if "window" in line} == {str(window.window_id)}
    text = repr(lines)
    found = [
        name
        for device in (*devices, late)
        for name, one in names_of(device).items()
        for form in (one.hex(), one.hex()[:12], repr(one)[2:-1], str(int.from_bytes(one, "big")))
        if form in text
    ]
    assert found == []
