"""One package for each system: pure mathematics, and the PTransforms that use it."""

import logging

# Beam warns of this at import if the gcp extra is not installed. The extra is optional.
logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("apitools not found"))
