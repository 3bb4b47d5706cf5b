"""The exporter's log on standard error: text, or one JSON object or logfmt record per line."""
