"""The experiments of the four papers, their numbered claims, and the golden numbers; on counts alone.

It must not write a file or print: `results.Results` receives what comes out.
"""
