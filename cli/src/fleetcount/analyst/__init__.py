"""What `import fleetcount as fc` offers to an analyst: releases, question, plans and studies as tables and pictures.

Reads files and runs studies of this machine; it must not open a connection, and shows no number of a release before
its signatures are verified. Loads nothing itself.
"""
