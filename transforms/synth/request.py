"""What `sfumato synth` is asked for, checked, and how it is cut into files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.synth.people import DEFAULT_REGION, USER_ID_KINDS, UserIdKind

ROW_GROUP_ROWS = 500_000
MAX_DENSITY_DEPTH = 12  # a raster of 128 MiB for each worker
MAX_USERS = 1 << 40
MAX_USERS_PER_FILE = 100_000_000


@dataclass(frozen=True)
class SynthRequest:
    """What is to be generated. Raises RequestError for a value that cannot be served.

    Users come in blocks of `users_per_file`, as many blocks as files. File f of F holds record j of the users
    of block (f - j) mod F, for every j: so with several files a user's records lie in different files, and
    whoever reads them has to bring them together. With a day, only the users who are active on it have records.
    """

    users: int
    records_per_user: int = 1
    region: Region = DEFAULT_REGION
    seed: int = 0
    users_per_file: int = 1_000_000
    user_id: UserIdKind = "int"
    density_depth: int = 10
    day: date | None = None

    def __post_init__(self) -> None:
        _require_whole("users", self.users, 1, MAX_USERS)
        _require_whole("records_per_user", self.records_per_user, 1, 100_000)
        _require_whole("seed", self.seed, 0, (1 << 64) - 1)
        _require_whole("users_per_file", self.users_per_file, 1, MAX_USERS_PER_FILE)
        _require_whole("density_depth", self.density_depth, 1, MAX_DENSITY_DEPTH)
        if self.user_id not in USER_ID_KINDS:
            raise RequestError(f"user_id: must be one of {', '.join(USER_ID_KINDS)}, got {self.user_id!r}")
        if self.files > 99_999:
            least = -(-self.users // 99_999)
            raise RequestError(
                f"users_per_file: {self.users_per_file} would make {self.files} files; at most 99999 are "
                f"allowed, so give {least} or more"
            )

    @property
    def files(self) -> int:
        """Number of files."""
        return -(-self.users // self.users_per_file)

    @property
    def grid(self) -> Grid:
        """The grid of the density raster."""
        return Grid(self.region, self.density_depth)

    def file_name(self, index: int) -> str:
        """Name of the file with that index."""
        return f"part-{index:05d}-of-{self.files:05d}.parquet"

    def pieces(self, index: int) -> Iterator[tuple[int, int, int]]:
        """(first user, last user + 1, record number) of the pieces of a file, a row group or less each."""
        for record in range(self.records_per_user):
            block = (index - record) % self.files
            end = min((block + 1) * self.users_per_file, self.users)
            for first in range(block * self.users_per_file, end, ROW_GROUP_ROWS):
                yield first, min(first + ROW_GROUP_ROWS, end), record


def _require_whole(name: str, value: int, least: int, most: int) -> None:
    if not (isinstance(value, int) and least <= value <= most):
        raise RequestError(f"{name}: must be a whole number in {least}..{most}, got {value!r}")
