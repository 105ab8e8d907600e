"""Groups of a device's commands: what each holds, in which module, and what its help says.

Loads no command: the module of one is imported when it is called (`command.base`).
"""

import click

from fleetcount.command.base import LazyGroup, table

_LEDGER = "fleetcount.run.device"
_QUESTIONS = "fleetcount.run.device"


@click.group(
    cls=LazyGroup,
    lazy=table(
        [
            ("log", _QUESTIONS, "log", "What was asked, reserved, answered and refused."),
            ("question", "fleetcount.device_groups", "device_question", "Questions of many windows: join, leave."),
            ("new", "fleetcount.keys.new_device", "new", "Key, request and configuration of one device."),
            ("run", "fleetcount.run.device", "run", "Answer questions until stopped."),
            ("ledger", _LEDGER, "ledger", "What was answered and what it cost."),
            ("status", "fleetcount.run.device", "status", "The certificate, its end, and the next one."),
            ("spool", _LEDGER, "spool", "What is on its way."),
        ]
    ),
)
def device() -> None:
    """Run one device, or read what it answered and spent.

    Exit codes: 0 done, 2 usage or configuration, 3 refused by policy or protocol, 4 cannot reach an aggregator,
    5 this machine (disk, store), 130 interrupted.
    """


@click.group(
    "question",
    cls=LazyGroup,
    lazy=table(
        [
            ("list", _QUESTIONS, "list_questions", "Every question that was offered, and where it stands."),
            ("join", _QUESTIONS, "join", "Take part in a question from now on."),
            ("leave", _QUESTIONS, "leave", "Take part no more."),
            ("reserved", _QUESTIONS, "reserved", "What joined questions hold of the budget."),
        ]
    ),
)
def device_question() -> None:
    """Decide about signed questions that are asked again and again.

    QUESTION is a question's name or the beginning of its id, as `list` shows them. A device that runs at the same time
    takes notice at its next window.
    """
