"""Which failures of remote calls are retryable, and how long remote calls are retried."""

from __future__ import annotations

from typing import Any

# The policy of every remote call: pauses of random length, at most 0.2 s, 0.4 s, 0.8 s ... 8 s, for at most a minute.
FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_WAIT_S = 0.2, 8.0, 60.0
_PASSING = (408, 429, 500, 502, 503, 504)  # answers that another attempt may change


def may_pass(error: BaseException) -> bool:
    """Returns whether the error is retryable. The failed call may have had its effect nevertheless.

    error: any exception; those of the network are OSErrors, and what is neither theirs nor Google's does not pass.
    """
    from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAPICallError):
        return error.code in _PASSING
    if isinstance(error, GoogleAuthError):
        return isinstance(error, TransportError) or bool(error.retryable)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:  # of an upload or a download, whose errors have a separate class
        return status in _PASSING
    return isinstance(error, GoogleAPIError | OSError)


def google_retry() -> Any:
    """Returns the policy for the clients of Google. Only for calls that may be repeated without harm."""
    from google.api_core.retry import Retry

    return Retry(predicate=may_pass, initial=FIRST_PAUSE_S, maximum=LONGEST_PAUSE_S, timeout=MAX_WAIT_S)
