"""Make keys, certificates and the configuration files that name them."""
