"""Entry point of the `fleetcount` command."""

import click


@click.group()
def main() -> None:
    """Count a fleet without tracking it."""


if __name__ == "__main__":
    main()
