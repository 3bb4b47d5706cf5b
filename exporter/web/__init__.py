"""The listener for Prometheus and browsers: HTTP, its configuration file, login, health."""
