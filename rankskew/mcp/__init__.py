"""The tools of `rankskew mcp`: what the commands print as JSON, for an assistant."""
