"""The worker processes that verify reports, and which verifier they may trust."""
