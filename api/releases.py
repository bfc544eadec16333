"""A release in Python: printed, shown in a notebook, plotted, saved."""

from __future__ import annotations

import math
import os
import textwrap
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sfumato.notebook import Widget, escaped, make_widget, picture_bundle
from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import Z
from sfumato.schemas.release import MANIFEST_FILE, MODEL_FILE, MOMENTS_FILE, PAGE_FILE, ZONES_FILE
from sfumato.schemas.views.view_parts import Bounds
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.formats import export_release
from sfumato.transforms.export.map_dataset import map_dataset, map_frame
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.model_file import read_model
from sfumato.transforms.release import published_release
from sfumato.transforms.zones.release_zones import zones_from, zones_of_release

if TYPE_CHECKING:
    import geopandas
    import pandas as pd
    import xarray
    from matplotlib.axes import Axes

_MAX_BARS = 30
_MAP, _CHARACTERS = 6.5, 12  # a map's longer side, in inches; characters of a plot's title to an inch


@dataclass(frozen=True, repr=False)
class Release(published_release.Release):
    """A published release.

    `print(release)` lists its tables. `table(name)` and the properties with the names of tables (`cells`, `items`,
    `quantiles`, `moments`, ...) read them as data frames; `table()` reads the main one. The table of zones is
    `zones_table`, because `zones(polygons)` estimates zones from a heatmap.

    Attributes:
        path: its folder.
        manifest: the content of manifest.json.
    """

    @cached_property
    def model(self) -> RangeModel:
        """Returns the model of `sfumato ranges`, which answers squares. Raises RequestError if there is none."""
        return read_model(self.read(MODEL_FILE), f"{self.path}/{MODEL_FILE}")

    def zones_total(self, rows: NDArray[Any]) -> tuple[float, float]:
        """Returns users of several published zones together, and the standard deviation of that sum's error.

        Errors of zones go together where several levels were queried, so their deviations do not give the error of
        a sum.

        Args:
            rows: bool[n] or float64[n], one for each row of `table("zones")`: whether it counts, or which share of it.
                A zone of a coarser level counts as all of its parts.

        Returns:
            Users, which may be negative, and their standard deviation; 1.96 of them on each side are a 95% interval of
            a sum of several zones.

        Raises:
            RequestError: rows has another length, or the release has no table of zones.
        """
        from sfumato.transforms.statistics.tree_least_squares import total_variance

        table, weights = self.arrow_table(ZONES_FILE), np.asarray(rows, dtype=np.float64)
        if "users" not in table.column_names:
            raise RequestError(
                f"{self.path}: the rows of this release do not add up, as those of `sfumato zones` do: a user may "
                "count in several"
            )
        if weights.shape != (table.num_rows,):
            raise RequestError(f"rows: must hold one value for each of {table.num_rows} zones, got {weights.shape}")
        levels = self.manifest["zones"]["levels"]
        ends = np.cumsum([level["zones"] for level in levels])
        names, above = table["zone"].to_pylist(), table["parent"].to_pylist()
        parts = np.split(weights, ends[:-1])
        parents = []
        for (first, last), (_, end) in pairwise(pairwise([0, *ends])):
            index = {name: number for number, name in enumerate(names[last:end])}
            parents.append(np.array([index[one] for one in above[first:last]]))
        for place in range(len(parts) - 1, 0, -1):
            parts[place - 1] = parts[place - 1] + parts[place][parents[place - 1]]
        noise = [None if level["noise_stddev"] is None else level["noise_stddev"] ** 2 for level in levels]
        users = table["users"].to_numpy()[: ends[0]]
        return float(users @ parts[0]), float(np.sqrt(total_variance(parts[0], noise, parents)))

    def save(self, output: str | os.PathLike[str], overwrite: bool = False) -> Release:
        """Copies the complete release into a folder.

        Args:
            output: the folder, local or gs://.
            overwrite: whether to replace an existing release.

        Returns:
            The copy.

        Raises:
            RequestError: the folder is taken, a file of this release is damaged, or the manifest lists no files.
        """
        # Beam takes seconds to import, and reading needs none.
        from sfumato.transforms.release.release_folder import publish

        if self.listed is None:
            raise RequestError(
                f"{self.path}: the manifest lists no files, so a copy cannot be checked for completeness; copy the "
                "folder itself"
            )
        files = {name: self.read(name) for name in self.listed}
        files[MANIFEST_FILE] = published_release.read_part(self.path, MANIFEST_FILE)
        publish(os.fspath(output), files, str(self.manifest.get("release_id")), overwrite)
        return open_release(output)

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        *,
        licence: str | None = None,
        table: str | None = None,
        overwrite: bool = False,
    ) -> list[str]:
        """Writes the release as a file of another tool, with its guarantee in the file's metadata.

        Args:
            path: the file, local or gs://.
            format: geotiff, geojson, csv, xlsx, geoparquet, gpkg or pmtiles; None for that of the file's suffix.
            licence: that the file states, as an SPDX identifier such as CC-BY-4.0; None states none.
            table: of the release; None for the one with the map.
            overwrite: whether to replace an existing file.

        Returns:
            The files that were written, `path` first.

        Raises:
            RequestError: the format does not fit the release, an option is wrong, a library is missing, or the file
                cannot be written.
        """
        return export_release(self, os.fspath(path), format, licence=licence, table=table, overwrite=overwrite)

    def to_xarray(self, table: str | None = None) -> xarray.Dataset:
        """Returns the map as bands over pixels: `users`, `density`, its interval and standard deviation, rates or
        means.

        A pixel has the value of its cell, so the pixels of one cell are not independent. The attributes `long_name`
        and `units` say what a band is, and the attributes of the Dataset state the guarantee.

        Args:
            table: `slots`, for the maps of slots of time; None for the whole map.

        Returns:
            A Dataset with the dimensions y and x, in degrees, and before them slot. y is from the north.

        Raises:
            RequestError: the release has no map of cells or no such table, or xarray is missing.
        """
        return map_dataset(ExportSource(self, table_name=table))

    def to_geodataframe(self, table: str | None = None) -> geopandas.GeoDataFrame:
        """Returns the rows of the map with their shapes; `attrs` states the guarantee.

        Args:
            table: of the release; None for the one with the map.

        Raises:
            RequestError: the release has no such table or no map, or geopandas is missing.
        """
        return map_frame(ExportSource(self, table_name=table))

    def zones(self, polygons: Any, id_column: str | None = None, radius: float | None = None) -> pd.DataFrame:
        """Returns users of zones, such as tracts, from a heatmap. It costs no privacy budget.

        A release that counted zones, of `sfumato.zones` or `sfumato.histogram`, has them in `zones_table`.

        The errors include the noise, with the correlation between cells, and the places of users inside cells that a
        border cuts. What is estimated is the number of users whose counted location is in a zone.

        Args:
            polygons: a GeoDataFrame or GeoSeries, shapely polygons, or the path of a file; points with `radius`.
            id_column: the column or property of the zones' ids; a file needs it. Without it a frame's index or a
                polygon's number is its id.
            radius: in metres, of the zones around points: the places that are nearer to it than to any other.

        Returns:
            One row a zone, by release_zones_schema: zone, users, stddev, the 95% interval low to high, and more.

        Raises:
            RequestError: the release is no heatmap or does not state its errors, or the zones cannot be used.

        Example:
            >>> import shapely
            >>> release = sfumato.heatmap("logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), depth=5)
            >>> list(release.zones([shapely.box(3.02, 1.02, 3.05, 1.05)])["zone"])
            ['0']
        """
        return published_release.data_frame(zones_of_release(self, zones_from(polygons, id_column, radius)))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the release's main result with matplotlib.

        The map of the release's picture, on axes in degrees, or the most frequent items, the distribution function or
        the means. Bars and bands are 95% intervals. Names have the room of the axes at the time of the call.

        Args:
            ax: where to draw; by default the axes of a new figure.

        Returns:
            The axes.

        Raises:
            RequestError: the release has nothing to draw, or it is damaged.
        """
        # The views of all jobs, which reading a release does without.
        from sfumato.pipelines.operations.readers import release_view
        from sfumato.transforms.report.map_axes import draw_map_on

        listed, tables = self.listed, self.tables
        if not listed:
            raise RequestError(f"{self.path}: this release has nothing to plot; its manifest lists no files")
        view = release_view(self)
        draws = {"curve": self._plot_curve, "items": self._plot_items}
        if len(self.arrow_table(MOMENTS_FILE) if MOMENTS_FILE in listed else ()):
            draws["moments"] = self._plot_moments
        chart = next((draw for name, draw in draws.items() if name in tables), None)
        if chart is None and view.map is None:
            raise RequestError(f"{self.path}: this release has nothing to plot; it has {', '.join(sorted(listed))}")
        if ax is None:
            import matplotlib.pyplot as plt

            size = (6.4, 4.8) if view.map is None or chart is not None else _size(view.map.region)
            _, ax = plt.subplots(figsize=size, layout="compressed")
        epsilon = self.manifest["privacy"]["epsilon"]
        made = "no privacy" if epsilon is None else f"ε\u00a0=\u00a0{epsilon:g}"  # on one line
        lines = [view.heading or view.title, " · ".join(filter(None, (view.period, made)))]
        most = max(int(ax.get_window_extent().width / ax.figure.dpi * _CHARACTERS), 20)
        ax.set_title("\n".join(textwrap.fill(line, most) for line in lines), fontsize=11, parse_math=False)
        if chart is not None:
            chart(ax)
        elif view.map is not None:
            draw_map_on(ax, view, view.map)
        return ax

    def _plot_items(self, ax: Axes) -> None:
        items = self.items[self.items["level"] == self.items["level"].min()].head(_MAX_BARS)[::-1]
        names = [str(name).replace("$", r"\$") for name in items["item"]]
        ax.barh(range(len(names)), items["count"], xerr=Z * items["stddev"], color="#b5367a", ecolor="#888888")
        ax.set_yticks(range(len(names)), names)
        ax.set(xlabel="users")

    def _plot_curve(self, ax: Axes) -> None:
        curve = self.curve
        ax.fill_between(curve["value"], curve["low"], curve["high"], color="#b5367a", alpha=0.25, linewidth=0)
        ax.plot(curve["value"], curve["share"], color="#b5367a")
        shown = self.quantiles
        ax.plot(shown["value"], shown["share"], "o", color="#3b0f70")
        ax.set(xlabel=self._column, ylabel="share of the users below", ylim=(0, 1))

    def _plot_moments(self, ax: Axes) -> None:
        moments = self.moments[self.moments["statistic"] == self.moments["statistic"].iloc[0]].reset_index(drop=True)
        errors = np.abs(moments[["low", "high"]].to_numpy().T - moments["value"].to_numpy())
        names = ["everybody" if name is None else str(name).replace("$", r"\$") for name in moments["group"]]
        ax.errorbar(moments["value"], range(len(names)), xerr=errors, fmt="o", color="#b5367a")
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set(xlabel=f"{moments['statistic'].iloc[0]} of {self._column}")

    @property
    def _column(self) -> str:
        column = self.manifest.get("column") or self.manifest["parameters"].get("column", "value")
        return str(column).replace("$", r"\$")

    def widget(self, height: int = 720) -> Widget:
        """Returns the release's page as a widget of a notebook: a map to move, with values, intervals and the
        guarantee.

        The page works without the network, and reads nothing from the notebook that holds it. It adds its size to the
        notebook's file: 0.5 MB for a chart, and up to 3 MB for a map of a million users. Where scripts do not run, as
        on GitHub, in a notebook that is not trusted or in a PDF, the release's picture is shown instead.

        Args:
            height: of the frame in CSS pixels, 300 to 4,000.

        Returns:
            The widget. A notebook shows it if it is the last value of a cell.

        Raises:
            RequestError: height is out of its range, a file of the release is damaged, or the job has no page.
        """
        return make_widget(self, height)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Returns the release in a notebook: its picture, its guarantee, a link to its page. Nothing in it is run."""
        return picture_bundle(self, self._link())

    def _link(self) -> str:
        """Returns a link to the page of a local release, relative if the release's path is; the path of one in a
        bucket.
        """
        if PAGE_FILE not in (self.listed or ()):
            return ""
        page = f"{self.path.rstrip('/')}/{PAGE_FILE}"
        if "://" in self.path:
            return f"<p><code>{escaped(page)}</code></p>"
        address = Path(page).as_uri() if Path(page).is_absolute() else quote(page)
        return f'<p><a href="{escaped(address)}">{escaped(page)}</a></p>'


def _size(region: Bounds) -> tuple[float, float]:
    """Returns the size in inches of a figure that a region's map fills."""
    wide = (region.east - region.west) * math.cos(math.radians((region.south + region.north) / 2))
    tall = region.north - region.south
    return max(_MAP * min(wide / tall, 1) + 1.8, 5.0), max(_MAP * min(tall / wide, 1) + 1.1, 3.0)


def open_release(path: str | os.PathLike[str]) -> Release:
    """Opens a published release. A local one needs no Beam.

    Args:
        path: the release's folder, local or gs://.

    Raises:
        RequestError: there is no release, or it was refused.

    Example:
        >>> release = sfumato.heatmap("logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), output="map", depth=5)
        >>> sfumato.open_release("map").tables
        ('answers', 'cells', 'totals')
    """
    release = published_release.open_release(path)
    return Release(release.path, release.manifest, release.digest)
