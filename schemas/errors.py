"""The two ways in which a job can refuse: the request is wrong, or the data are."""


class SfumatoError(Exception):
    """Base class of every error that a caller can act on. `exit_code` is the command's exit status."""

    exit_code = 1


class RequestError(SfumatoError, ValueError):
    """An option, a configuration file or an input's shape is wrong. The message names the field and the remedy."""

    exit_code = 2


class DataError(SfumatoError):
    """The data cannot support a release (a damaged file, too few users, too many bad rows). Nothing is published."""
