"""The deployments that tests of this folder share."""
