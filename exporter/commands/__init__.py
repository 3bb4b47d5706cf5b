"""The commands that need a node: one file for each, whose run() takes the command's arguments."""
