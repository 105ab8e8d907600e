"""Between a device and one aggregator: certificates, keys, HPKE, sessions and receipts."""
