"""One aggregator: takes shares, checks, agrees, adds, adds noise, releases."""

__all__: list[str] = []
