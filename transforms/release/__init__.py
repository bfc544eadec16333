"""Releases: their files, made from finished statistics; publishing, all files or none; and reading them back."""
