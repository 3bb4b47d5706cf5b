"""What is wrong with a job, why, and what to do about it: reads recorded data, writes a report."""
