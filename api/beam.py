"""The jobs as PTransforms for pipelines of your own."""
