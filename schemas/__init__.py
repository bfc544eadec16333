"""What crosses a boundary: regions, trees, location logs, guarantees, manifests, configuration. No Beam here."""
