"""From what devices send to what is durable and has its receipt: sessions, checks, opening, gRPC calls and MQTT."""
