"""Changes between two published heatmaps: where they differ by more than noise explains. Reads releases only."""
