"""Show a fleet: the demo of a whole deployment, and static pages of releases."""
