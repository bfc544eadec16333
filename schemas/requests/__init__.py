"""One typed request a job. The command line, a refresh's YAML file and the Python call all make the same request."""
