"""The experiments of the four papers, one folder for each, and their numbered claims; they use counts only.

It must not print or write a file itself: an experiment passes its output to `results.Results`.
"""
