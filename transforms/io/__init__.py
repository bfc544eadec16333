"""Local and remote files: open, list, copy, write atomically, and retry."""
