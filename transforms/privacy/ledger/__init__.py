"""The privacy ledger: the charge of every release, recorded before any noise is drawn."""
