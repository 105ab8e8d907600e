"""The parts of one process that depend on no window: states, keys, metrics, queues."""
