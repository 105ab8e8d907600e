"""Prio3 (draft-irtf-cfrg-vdaf): field, proof system, circuits, sharding and verification, and our two-round form."""
