"""Each file replays an attack on what surrounds the arithmetic; docs/explanation/threat_model.md names the promises."""
