"""Indexes of cells (H3, quadkeys) and files of geographic features."""
