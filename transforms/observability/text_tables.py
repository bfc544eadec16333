"""Tables as Markdown whose columns are aligned, so that a terminal shows them as well. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sfumato.schemas.known_digits import NOISE_Z, about

EXAMPLE_USERS = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)  # rows of a table by the number of users

TYPICAL_USERS = 1_000_000  # of a figure that depends on the number of users, where that is not known


def markdown_table(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Returns the table. rows: the header first. Columns are right-aligned except those numbered in `left`."""
    cells = [[text.replace("|", r"\|") for text in line] for line in lines]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(cells[0]))]
    rule = ["-" * width if i in left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    written = []
    for line in [cells[0], rule, *cells[1:]]:
        padded = [
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        written.append(f"| {' | '.join(padded)} |")
    return "\n".join(written) + "\n"


def mean_errors_table(figure: Callable[[int], str]) -> str:
    """Returns a table of the error of a mean for several numbers of users."""
    rows = [[f"{users:,}", figure(users)] for users in EXAMPLE_USERS]
    return markdown_table([["users", "error of the mean, 95%"], *rows], left=())


def significant(value: float, digits: int = 3) -> str:
    """This many significant digits, with separators of thousands: `1,230`, `0.00456`, `1.2e-09`."""
    text = f"{value:.{digits}g}"
    large = abs(value) >= 10**digits
    return f"{float(text):,.0f}" if large and abs(value) < 1e15 else text


def counted(users: float, stddev: float) -> str:
    """Returns a noisy number of users with its margin, as in `320,000 users (± 1,600, 95%)`.

    A negative number is `0 users (at most 390, 95%)`.
    """
    margin = significant(NOISE_Z * stddev, 2)
    reach = f"at most {margin}" if users < 0 else f"± {margin}"
    return f"{about(users, stddev)} users" + (f" ({reach}, 95%)" if stddev > 0 else "")
