"""Orders of this node's operator, from the command line to what the exporter does with them."""
