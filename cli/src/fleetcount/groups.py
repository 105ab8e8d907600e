"""Groups of commands: what each holds, in which module, and what its help says.

Loads no command: the module of one is imported when it is called (`command.base`). The groups of a device stand in
`device_groups`, since a car has no others.
"""

import click

from fleetcount.command.base import LazyGroup, table

_CREATE = "fleetcount.question.create"
_SIGN = "fleetcount.question.create"
_ORDERS = "fleetcount.question.orders"
_RELEASE = "fleetcount.read.release"
_STORE = "fleetcount.run.aggregator"
_KEYS = "fleetcount.keys.aggregator_keys"
_PKI = "fleetcount.keys.pki"
_OPERATORS = "fleetcount.keys.operators"
_PARTIES = "fleetcount.keys.parties"
_BROKER = "fleetcount.keys.broker"


@click.group(
    cls=LazyGroup,
    lazy=table(
        [
            ("status", _RELEASE, "status", "How far it is: windows released or missing, states, refusals."),
            ("release", _RELEASE, "release", "Fetch, check and keep the signed counts."),
            ("export", "fleetcount.read.export", "export", "Tables, maps and answers from the records of many."),
            ("places", "fleetcount.read.places", "places", "What the walks of a drill-down found."),
            ("create", _CREATE, "create", "Write NAME.question from a specification."),
            ("show", _CREATE, "show_question", "What a question asks, and what could be learnt from it."),
            ("sign", _SIGN, "sign", "Sign NAME.question as one aggregator's operator."),
            ("submit", _SIGN, "submit", "Hand a complete NAME.question to the leader."),
            ("pause", _ORDERS, "pause", "Skip windows from one on, until resume."),
            ("resume", _ORDERS, "resume", "Ask again from a window on."),
            ("stop", _ORDERS, "stop", "End this operator's part, and with it the question."),
        ]
    ),
)
def question() -> None:
    """Ask a question of a fleet, once or again and again, under one promise.

    \b
    create   the asker writes NAME.question from a specification
    show     what it asks, and what could be learnt from it
    sign     every operator signs it, once for all windows (also: reads it first)
    submit   the leader's operator hands it to its aggregator
    status   how far it is; windows released, missing and why; what was refused
    release  the signed counts, checked: of one window with its table, of many a folder of records
    export   tables and maps from these records
    places   what the walks of a drill-down found
    pause    the leader's operator skips windows from one on; resume asks them again
    stop     any operator ends its own part, and with it the question, for good
    """


@click.group(
    cls=LazyGroup,
    lazy=table(
        [
            ("init", "fleetcount.keys.deployment", "init", "A whole test deployment in a new directory."),
            ("store", _KEYS, "store", "A new key for what an aggregator's store holds."),
            ("succeed", _KEYS, "succeed", "A new signing key, named by the old one."),
            ("wrap", _KEYS, "wrap", "Put sealing keys under a key of a token."),
            ("descriptor", _KEYS, "descriptor", "A descriptor with the keys of now."),
        ]
    ),
)
def keys() -> None:
    """Make keys, certificates and configurations.

    For tests and first steps: one person makes everybody's keys. In earnest every operator makes its own and hands
    out the descriptor file alone.
    """


@click.group(
    cls=LazyGroup,
    lazy=table(
        [
            ("init", _PKI, "init", "Make the authorities in a new directory."),
            ("request", _PKI, "request", "Make a private key and its signing request; run by the party."),
            ("enrol", _PKI, "enrol", "A device, from its request."),
            ("reader", _PKI, "reader", "An analyst who reads releases, from a request."),
            ("aggregator", _PKI, "aggregator", "An aggregator, from its request."),
            ("slot", _PKI, "slot", "A further connection of an aggregator to the broker, from its request."),
            ("relay", _PKI, "relay", "A relay, from its request."),
            ("broker", _PKI, "broker", "An MQTT broker, from its request."),
            ("renew", _PKI, "renew", "The next certificate of a party, for the same key or a new one."),
            ("revoke", _PKI, "revoke", "Shut a party's key out before its certificate ends."),
            ("deny-list", _PKI, "deny_list", "Sign the deny list again before it ends."),
            ("list", _PKI, "list_issued", "What was issued, and what ends when."),
        ]
    ),
)
def pki() -> None:
    """Keep the certificates of a deployment: enrol, renew, revoke, list.

    One operator keeps the enrolment directory, on a machine that is not on the network as far as it can be. Parties
    make their own keys (`pki request`) and hand in requests; private keys never come here.
    """


@click.group(
    cls=LazyGroup,
    lazy=table(
        [
            ("check", _STORE, "check", "What of the store is damaged, and what that means."),
            (
                "repair",
                "fleetcount.run.aggregator",
                "repair",
                "End damaged windows by the record others have, or here.",
            ),
            ("backup", _STORE, "backup", "Write a backup, while the aggregator runs or not."),
            ("restore", _STORE, "restore", "Put a backup in the place of a store that is gone."),
            ("migrate", _STORE, "migrate", "Bring a store up to the tables of this version."),
            ("serve", "fleetcount.run.aggregator", "serve", "Serve devices and peers until SIGTERM."),
            ("move-store", _STORE, "move_store", "Move a store between SQLite and PostgreSQL."),
            ("status", _STORE, "status", "The windows of an aggregator and where they stand."),
            ("windows", _STORE, "windows", "All windows of an aggregator, page by page."),
        ]
    ),
)
def aggregator() -> None:
    """Run one aggregator, or look at its windows.

    Exit codes: 0 done, 2 usage or configuration, 3 refused, 4 cannot reach a party, 5 this machine (disk, store, port),
    130 interrupted.
    """


@click.group(
    cls=LazyGroup,
    lazy=table(
        [
            ("new", _OPERATORS, "new", "Keys, authorities, configuration and descriptor of one operator."),
            ("join", _OPERATORS, "join", "Trust another operator, by its descriptor and its fingerprint."),
            ("admit", _OPERATORS, "admit", "Certify devices, analysts, relays and brokers that ask for it."),
        ]
    ),
)
def operator() -> None:
    """Begin as an operator, on a machine of one's own: docs/first-deployment.md goes through it.

    A larger house that keeps one authority for all uses `fleetcount pki`.
    """


@click.group(
    cls=LazyGroup,
    lazy=table([("new", _PARTIES, "analyst", "What an analyst needs to ask and to read.")]),
)
def analyst() -> None:
    """Begin as an analyst; what is asked and read is in `fleetcount question`."""


@click.group(
    cls=LazyGroup,
    lazy=table(
        [
            ("new", _BROKER, "new", "What mosquitto needs: key, request, configuration, rules."),
            ("join", _BROKER, "join", "Let in whom another operator certifies, by its descriptor and its fingerprint."),
        ]
    ),
)
def broker() -> None:
    """Begin as the MQTT broker of a deployment, which is trusted with nothing."""


class _RelayGroup(LazyGroup):
    """`fleetcount relay --config FILE` is `fleetcount relay serve --config FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, after putting in the command that is left out."""
        left_out = bool(args) and args[0].partition("=")[0] == "--config"
        return super().parse_args(ctx, ["serve", *args] if left_out else args)


@click.group(
    cls=_RelayGroup,
    lazy=table(
        [
            ("serve", "fleetcount.run.relay", "relay", "Carry reports until SIGTERM; `relay --config` for short."),
            ("new", _PARTIES, "relay", "Key, request and configuration of one relay."),
        ]
    ),
)
def relay() -> None:
    """Carry the reports of many devices to aggregators, unread."""
