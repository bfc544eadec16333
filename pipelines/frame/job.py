"""A job that publishes a release: its request, columns, cost, parameters and graph, and what it is given to run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import apache_beam as beam

from sfumato.pipelines.frame.accounting import Accounting
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import Columns
from sfumato.schemas.rectangle import Region
from sfumato.schemas.release import MANIFEST_FORMAT
from sfumato.schemas.requests.publish_request import MapGeography, ReleaseRequest
from sfumato.schemas.requests.request_base import Request
from sfumato.transforms.geo.feature_files import feature_bytes
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.admission import AdmissionRule, ChargeAndAdmit
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret
from sfumato.transforms.release.basemap_file import MAX_FILE_BYTES, file_basemap, geography_bytes
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import with_charge_statement

BYTES_PER_ROW = 30  # 12 of a record's chunk, then 8, 4 and 4 of its user
VALUE_BYTES_PER_ROW = 8  # of a record's chunk, where records have weights or times
DISTRIBUTION_BYTES_PER_ROW = 76  # 12, and then 20, 20 and 16, or 24 with many levels, of each of its user's cells

# Memory by `python -m benchmarks.memory`.
PLAIN_BYTES = 350_000_000  # of Python, Beam and NumPy, and of a small release
MAP_BYTES = 600_000_000  # while a map of depth 10 is estimated, drawn and written


# A graph's noisy result, and what makes the release's files of it; see `ReleaseJob.build`.
ResultsAndFiles = tuple[beam.PCollection, Callable[[Any, ReleaseMetadata], dict[str, bytes]]]


@dataclass(frozen=True)
class RunBytes:
    """Expected bytes of a run."""

    stored: int  # bulky data that are written in all
    held: int  # those in memory at one time, if they are not written to a folder
    release: int  # the process while it makes the release


@dataclass(frozen=True)
class ReleaseJob(ABC):
    """A request with its graph, columns, cost and parameters. Jobs add their own fields.

    Attributes:
        FORMAT: of the manifest that the job writes.
        STATED_AS: options of the request that the manifest states as a part of another parameter.
    """

    FORMAT: ClassVar[str] = MANIFEST_FORMAT
    STATED_AS: ClassVar[Mapping[str, str]] = {}

    request: ReleaseRequest

    @classmethod
    def of(cls, request: Any, *resolved: Any) -> Self:
        """Returns the job of a request. Raises RequestError.

        resolved: what `request.resolve` returned; it is called where that is left out.
        """
        found = resolved or (request.resolve(),)
        return cls(request, *(one for one in found if one is not None))

    @abstractmethod
    def columns(self) -> Columns:
        """Returns the columns that the job reads. They check their own types."""

    @abstractmethod
    def stated(self) -> dict[str, Any]:
        """Returns what the job makes of its options, in JSON's types: chosen values, columns, groups, plans."""

    def parameters(self) -> dict[str, Any]:
        """Returns all options that the result depends on, in JSON's types, for the manifest and `run_key.key_binding`.

        An option of the request is stated as it is, unless `stated` does it. So none is forgotten.
        """
        stated = self.stated()
        given = {name: value for name, value in self.request.shaping().items() if name not in self.STATED_AS}
        return {"min_users": self.request.min_users, **given, **stated}

    @abstractmethod
    def cost(self) -> Cost:
        """Returns the cost of the complete release, which the ledger charges."""

    @abstractmethod
    def admission(self) -> AdmissionRule:
        """Returns the rule by which noisy counts of users admit or refuse the run."""

    @abstractmethod
    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey) -> ResultsAndFiles:
        """Adds the job's graph to a pipeline.

        Args:
            logs: LogFiles, in bundles.
            inputs: what the frame gives the graph; `charge_and_admit` is called before any noise is drawn.
            key: of all noise.

        Returns:
            The noisy result, a PCollection of one element, and a function that makes the release's files of it,
            {name: content}. The function runs on a worker, so it must not hold the job, which may have secrets.
        """

    def files(self, logs: beam.PCollection, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        """Adds the job's graph, and makes the release's files, {name: content}, which state the charge."""
        results, files_of = self.build(logs, inputs, key)

        def assemble(result: Any) -> dict[str, bytes]:
            return files_of(result, with_charge_statement(metadata))

        return results | "Assemble" >> beam.Map(assemble)  # PCollection[dict[file name, bytes]]

    def plan_text(self) -> str:
        """Returns text for a terminal: what a client sends, and the accuracy, from public figures only."""
        return ""

    def accuracy(self) -> str:
        """Returns the error to expect in one phrase, from public figures only, to compare trust models by."""
        return ""

    def run_bytes(self, rows: int) -> RunBytes:
        """Returns the expected bytes of the run, for this number of input rows."""
        return RunBytes(rows * BYTES_PER_ROW, rows * BYTES_PER_ROW, PLAIN_BYTES)

    @property
    def zones_counted(self) -> Zones | None:
        """The public zones in which users are counted; None without."""
        return None

    def charge_and_admit(self, gate: Any, row_counts: Callable[[Any], None] | None = None) -> ChargeAndAdmit:
        """Returns the charge and the decision that follows it; see ChargeAndAdmit."""
        zones, rule, request = self.zones_counted, self.admission(), self.request
        region = request.region if isinstance(request, MapGeography) else None
        if zones is not None:
            rule = replace(rule, area=f"the zones (they span {zones.span})")
        elif region is not None:
            rule = replace(rule, area=f"the region ({region})")
        return ChargeAndAdmit(rule, gate, request.day_rows, request.dates, row_counts)

    @property
    def read_by_workers(self) -> tuple[str, ...]:
        """Folders of earlier releases that the graph reads when it runs."""
        return ()

    @property
    def discloses(self) -> bool:
        """Whether a ledger is not charged: without an epsilon it records the bits that users send."""
        return math.isinf(self.cost().epsilon)

    @property
    def is_repeatable(self) -> bool:
        """Whether another run over the same data has the same key, see `run_key.key_binding`."""
        return self.kept_secret is not None and self.request.release_id is not None

    @cached_property
    def geography(self) -> bytes | None:
        """What the release publishes of the map's geography, None without any. Raises RequestError."""
        return geography_of(self.request, None if self.zones_counted is None else self.zones_counted.region)

    @cached_property
    def accounting(self) -> Accounting | None:
        """The ledger that is charged; None without one."""
        return Accounting.of(self.request)

    @cached_property
    def kept_secret(self) -> Secret | None:
        """The stored secret (key file or Secret Manager), so that a retry has the same key; None without one.

        Raises RequestError if it cannot be used.
        """
        if self.request.key_secret is not None:
            return SecretManagerSecret(self.request.key_secret)
        return None if self.request.key_file is None else FileSecret(self.request.key_file)


@dataclass(frozen=True)
class Inputs:
    """Inputs of a job's graph."""

    column_types: dict[str, str]  # the type of each column's values (see Columns.check)
    spill: Spill  # the place for bulky data between stages
    # Charges the ledger once all input is read, then draws the noisy counts of users that admit or refuse the run.
    charge_and_admit: ChargeAndAdmit


def geography_of(request: Request, region: Region | None = None) -> bytes | None:
    """Returns the content of `basemap.json` for a request; None without a map or geography.

    request: of any job. region: of the map; None takes the request's.

    Raises RequestError: the file cannot be read or used.
    """
    if not isinstance(request, MapGeography):
        return None
    region = request.region if region is None else region
    if region is None:
        return None
    basemap = None
    if request.basemap is not None:
        basemap = file_basemap(request.basemap, feature_bytes("basemap", request.basemap, MAX_FILE_BYTES), region)
    return geography_bytes(region, basemap, request.tiles)
