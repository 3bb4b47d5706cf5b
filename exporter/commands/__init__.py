"""The commands of `rankskew`: one file for each, whose run() takes the command's arguments."""
