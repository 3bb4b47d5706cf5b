"""`rankskew exporter --config.check`: all that is wrong with the settings, before a start."""
