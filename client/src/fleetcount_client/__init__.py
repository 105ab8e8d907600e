"""What a device embeds to answer counting tasks."""

__all__: list[str] = []
