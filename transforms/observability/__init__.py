"""What an operator sees of a run: log events, Beam's metrics, and tables for a terminal."""
