"""Ghosh, Roughgarden, Sundararajan, Universally Utility-Maximizing Privacy Mechanisms [GEO]: experiments and claims."""
