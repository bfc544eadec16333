"""Two servers, as the commands that each party runs."""
