"""Static pages of signed releases, for any web server, or to open from a disk."""
