"""The ways in which a job can refuse. `exit_code` is the command's exit status, by which an orchestrator may decide."""


class SfumatoError(Exception):
    """Base class of every error that a caller can act on."""

    exit_code = 1


class DataError(SfumatoError):
    """The data cannot support a release, such as a damaged file. Nothing is charged or published."""


class RefusedError(DataError):
    """A refusal after the charge, decided on noisy and public values alone, of which the message is made.

    A release without any result is published in its place, which says why.
    """


class NotAdmittedError(RefusedError):
    """Refused by the noisy counts of users, before anything else was released: only these were paid for."""


class RequestError(SfumatoError, ValueError):
    """An option, a configuration file or an input's shape is wrong. The message names the field and the remedy."""

    exit_code = 2


class BudgetError(SfumatoError):
    """The ledger's limits do not allow this release. The message says when they will. Nothing is charged."""

    exit_code = 3


class LedgerError(SfumatoError):
    """The ledger is damaged or has been tampered with. Nothing is charged until a person has looked at it."""

    exit_code = 4


class NotReadyError(SfumatoError):
    """Not now, perhaps later: no data for the date yet, too little of it, a service that cannot be reached.

    The exit status is EX_TEMPFAIL of sysexits.h. What was charged, if anything, is resumed under the same release id.
    """

    exit_code = 75


class TooFewUsersError(NotAdmittedError):
    """Fewer users than were asked for, by the noisy count: as NotReadyError, perhaps later."""

    exit_code = NotReadyError.exit_code
