"""What is true of one process: states, keys, metrics, queues."""
