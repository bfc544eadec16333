"""The audit of a published release: what anyone can check of it without data and without the key."""
