"""The join: the ranks of a job compare their steps through the job's own store."""
