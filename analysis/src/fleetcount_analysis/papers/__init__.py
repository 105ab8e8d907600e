"""The experiments of the four papers, their numbered claims, and the golden numbers; on counts alone.

It must not know where its results go or who watches: `results.Results` receives them.
"""

__all__: list[str] = []
