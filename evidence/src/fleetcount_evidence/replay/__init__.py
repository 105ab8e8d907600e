"""Replays test vectors, operation by operation and byte for byte."""
