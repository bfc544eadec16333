"""What an operator does between runs: nightly refreshes, ledger, keys, published releases, pages and exports."""
