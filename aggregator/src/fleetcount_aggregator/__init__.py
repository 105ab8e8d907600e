"""One aggregator: takes shares, checks, agrees, adds, adds noise, releases."""
