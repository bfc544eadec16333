"""Each file replays an attack on what surrounds the arithmetic; docs/threat_model.md names the promises."""
