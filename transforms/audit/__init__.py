"""The audit of a published release: what anybody can check of it without data and without the key."""
