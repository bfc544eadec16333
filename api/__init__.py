"""Differentially private location analytics: each function runs a job and returns its release.

    import sfumato

    release = sfumato.heatmap("logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), epsilon=1.0)
    release.plot()

The functions take the options of the command `sfumato JOB` by name. `sfumato.beam` has the same jobs as PTransforms for
pipelines of your own. Names are imported when they are first used: `import sfumato` loads neither Beam nor NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato import beam
    from sfumato.jobs import flows, heatmap, histogram, hotspots, moments, quantiles, ranges, zones
    from sfumato.releases import Release, open_release
    from sfumato.schemas.errors import BudgetError, DataError, RequestError, SfumatoError
    from sfumato.schemas.region import Region
    from sfumato.tools import changes, client_report, inspect, plan, synth
    from sfumato.transforms.ranges.model_file import open_model

__all__ = [
    "BudgetError",
    "DataError",
    "Region",
    "Release",
    "RequestError",
    "SfumatoError",
    "beam",
    "changes",
    "client_report",
    "flows",
    "heatmap",
    "histogram",
    "hotspots",
    "inspect",
    "moments",
    "open_model",
    "open_release",
    "plan",
    "quantiles",
    "ranges",
    "synth",
    "zones",
]

# All other names are functions of `jobs`.
_MODULES = {
    **dict.fromkeys(("changes", "client_report", "inspect", "plan", "synth"), "tools"),
    "Release": "releases",
    "open_release": "releases",
    "BudgetError": "schemas.errors",
    "DataError": "schemas.errors",
    "RequestError": "schemas.errors",
    "SfumatoError": "schemas.errors",
    "Region": "schemas.region",
    "open_model": "transforms.ranges.model_file",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name == "beam":
        return importlib.import_module("sfumato.beam")
    value = getattr(importlib.import_module(f"sfumato.{_MODULES.get(name, 'jobs')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
