"""The randomizers, noise laws and privacy accounting of the four papers, exact and in the standard library only."""

__all__: list[str] = []
