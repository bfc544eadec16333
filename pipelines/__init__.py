"""One module a job that a user starts."""

import sfumato.transforms  # noqa: F401  (before Beam: it silences a warning)
