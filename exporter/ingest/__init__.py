"""The listener that training processes push snapshots to: connections, HTTP, schema."""
