"""Orders from this node's operator, from the command line to their effect in the exporter."""
