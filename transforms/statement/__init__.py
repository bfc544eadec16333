"""Statement of a release as a record of the registry of deployments: its options, content and formats."""
