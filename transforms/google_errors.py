"""Which failures of Google's clients may be gone at the next attempt."""

from __future__ import annotations

_PASSING = (408, 429, 500, 502, 503, 504)  # answers that another attempt may change


def may_pass(error: BaseException) -> bool:
    """Whether another attempt may do, which then leaves open whether this one had its effect.

    error: any exception; those of the network are OSErrors, and what is neither theirs nor Google's does not pass.
    """
    from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAPICallError):
        return error.code in _PASSING
    if isinstance(error, GoogleAuthError):
        return isinstance(error, TransportError) or bool(error.retryable)
    return isinstance(error, GoogleAPIError | OSError)
