"""Carrying out a study: shards, workers, scores, tables, the output directory."""
