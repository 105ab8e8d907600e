"""What every command offers: an example in its help that its own options take, and results for programs."""

import shlex
from collections.abc import Iterator

import click
from fleetcount.__main__ import cli
from fleetcount.command.base import DEVICE_EXAMPLES, example_of
from fleetcount.command.examples import EXAMPLES

from tests.support.cases import case

WITHOUT_JSON = {
    "keys init": "makes a deployment; its files are the result",
    "keys store": "makes a key; the file is the result",
    "keys wrap": "rewrites files; the one line names the key ids",
    "keys succeed": "makes a key and a statement; the files are the result",
    "keys descriptor": "writes a descriptor, which is TOML",
    "pki init": "makes authorities; the files are the result",
    "pki request": "makes a key and a request; the files are the result",
    "pki enrol": "issues a certificate; pki list --json has them all",
    "pki reader": "issues a certificate; pki list --json has them all",
    "pki aggregator": "issues a certificate; pki list --json has them all",
    "pki slot": "issues a certificate; pki list --json has them all",
    "pki relay": "issues a certificate; pki list --json has them all",
    "pki broker": "issues a certificate; pki list --json has them all",
    "pki renew": "issues a certificate; pki list --json has them all",
    "pki revoke": "signs a deny list; pki list --json tells of it",
    "pki deny-list": "signs a deny list; pki list --json tells of it",
    "question create": "writes a question, and beside it NAME.json",
    "question sign": "writes a signature, and shows what is signed to who signs it",
    "question submit": "hands a file over",
    "question pause": "signs an order",
    "question resume": "signs an order",
    "question stop": "signs an order",
    "aggregator serve": "runs until it is stopped; its log is JSON",
    "aggregator repair": "ends damaged windows; aggregator check --json tells of them",
    "aggregator backup": "writes a backup",
    "aggregator restore": "puts a backup in its place",
    "aggregator migrate": "brings up a store in PostgreSQL: tests/integration/test_upgrade.py",
    "aggregator move-store": "moves a store",
    "console": "runs until it is stopped; aggregator status --json tells of the windows",
    "relay serve": "runs until it is stopped; its log is JSON",
    "operator new": "makes keys; the descriptor has what is public",
    "operator join": "changes aggregator.toml; doctor --json tells of the peers",
    "operator admit": "issues certificates; pki list --json has them all",
    "analyst new": "makes a key and a request",
    "broker new": "makes a key and a request",
    "broker join": "changes the files of mosquitto, which says in its log what it took of them",
    "relay new": "makes a key and a request",
    "device new": "makes a key and a request",
    "device run": "runs until it is stopped; device log --json tells what it did",
    "device question join": "decides; device question list --json tells of it",
    "publish": "writes pages; what they show, the records have",
    "serve": "runs until it is stopped",
    "device question leave": "decides; device question list --json tells of it",
}
"""Commands that make, sign, hand over or run something, and why they print no result for programs."""
STATEMENTS = {"demo", "plan", *(f"question {step}" for step in ("create", "show", "sign", "release"))}


def commands(
    group: click.Group, context: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, click.Context(command, info_name=name, parent=context), (*path, name))
        else:
            yield " ".join((*path, name)), command


EVERY = dict(commands(cli, click.Context(cli, info_name="fleetcount")))
GROUPS = {" ".join(name.split()[:depth]) for name in EVERY for depth in range(1, len(name.split()))}


def options(name: str) -> set[str]:
    return {option for parameter in EVERY[name].params for option in parameter.opts}


def context_of(name: str) -> click.Context:
    context = click.Context(cli, info_name="fleetcount")
    for word in name.split():
        assert isinstance(context.command, click.Group)
        command = context.command.get_command(context, word)
        assert command is not None
        context = click.Context(command, info_name=word, parent=context)
    return context


def test_every_command_prints_json_or_says_why_not() -> None:
    with_json = {name for name in EVERY if "--json" in options(name)}

    assert len(EVERY) > 55
    assert set(EVERY) - with_json == set(WITHOUT_JSON)
    assert all(WITHOUT_JSON.values())


def test_every_command_that_prints_a_statement_explains_it() -> None:
    assert {name for name in EVERY if "--explain" in options(name)} == STATEMENTS


def test_the_help_of_every_command_ends_with_an_example_of_it() -> None:
    for name in EVERY:
        context = context_of(name)

        assert f"Example:\n  fleetcount {name}" in context.command.get_help(context), name
        assert all(len(line) <= 120 for line in str(example_of(name)).splitlines()), name


def test_an_example_is_one_that_the_command_takes() -> None:
    for name, command in EVERY.items():
        words = shlex.split(str(example_of(name)))
        depth = len(name.split())

        with case(name):
            parser = command.make_parser(click.Context(command, info_name=name))
            values, left, _ = parser.parse_args(words[1 + depth :])

            assert words[: 1 + depth] == ["fleetcount", *name.split()]
            assert left == []
            assert [one.name for one in command.params if one.required and one.name not in values] == []
            for parameter in command.params:
                if values.get(str(parameter.name)) is not None:
                    parameter.type_cast_value(click.Context(command), values[str(parameter.name)])


def test_the_help_of_every_group_ends_with_the_example_of_one_of_its_commands() -> None:
    for name in GROUPS:
        context = context_of(name)

        assert str(example_of(name)) in {example_of(one) for one in EVERY if one.startswith(name)}, name
        assert f"Example:\n  {example_of(name)!s}" in context.command.get_help(context), name


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert set(EXAMPLES) | set(DEVICE_EXAMPLES) == set(EVERY) | GROUPS
    assert all(name.startswith("device") is (name in DEVICE_EXAMPLES) for name in EVERY)
