"""The experiments of the four papers, a folder each, and their numbered claims; on counts alone.

It must not write a file or print: `results.Results` receives what comes out.
"""
