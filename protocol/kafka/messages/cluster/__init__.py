"""The cluster: APIs, brokers, controllers, settings."""
