"""Messages between domain values and bytes: devices, peers, relay, MQTT topics; one strict decoder for all."""
