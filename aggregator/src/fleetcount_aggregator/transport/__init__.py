"""The aggregator on the network: gRPC listeners, calls to peers, MQTT."""
