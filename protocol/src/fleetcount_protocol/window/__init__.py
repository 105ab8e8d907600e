"""The window, one counting question: its fields, the rules for them, its bytes and its signatures."""
