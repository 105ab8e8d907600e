"""Generated from protos/ by scripts/generate_protos.py; never edited by hand."""
