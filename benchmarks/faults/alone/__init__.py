"""What is done to an exporter of its own: full disks, little memory, replays, its socket."""
