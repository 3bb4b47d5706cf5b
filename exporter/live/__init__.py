"""The live page: what it says of a job, its data, and the page itself."""
