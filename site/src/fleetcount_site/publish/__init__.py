"""Static pages of signed releases, which anybody can put on any web server or open from a disk."""
