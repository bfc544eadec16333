"""The privacy ledger: what every release was charged with, before it saw data, for a year and longer."""
