"""Runner settings, one YAML file an environment; `--runner_config NAME` finds the shipped ones by name."""
