"""What the parties say to each other: tasks, Prio3, sealing, receipts, messages and the release record."""

__all__: list[str] = []
