"""One module a job that a user starts."""
