"""What an audit reads of this process and its node."""
