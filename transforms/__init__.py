"""One room a system: the pure mathematics beside the PTransform that uses it."""

import logging

# Beam warns of this at import wherever the gcp extra is not installed, which is no news to anybody.
logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("apitools not found"))
