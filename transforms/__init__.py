"""One room a system: the pure mathematics beside the PTransform that uses it."""
