"""Formats of logs, one a module: each gives Arrow batches of the columns that a job reads."""
