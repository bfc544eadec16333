"""Beam's runners: their options, job servers, folders that a process leaves, and errors that they raise."""
