"""The command line: the registry of jobs, parsing, and exit status."""
