"""A release in Python: printed, shown in a notebook, plotted, saved."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import shapely
from numpy.typing import NDArray

from sfumato.notebook import Widget, escaped, make_widget, picture_bundle
from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import Z
from sfumato.schemas.release import BASEMAP_FILE, DENSITY_FILE, MANIFEST_FILE, MODEL_FILE, PAGE_FILE, ZONES_FILE
from sfumato.schemas.views.map_views import Geography
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.formats import export_release
from sfumato.transforms.export.map_dataset import map_dataset, map_frame
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.model_file import read_model
from sfumato.transforms.release import published_release
from sfumato.transforms.report.layers import zone_names
from sfumato.transforms.report.sections import period
from sfumato.transforms.zones.release_zones import zones_from, zones_of_release

if TYPE_CHECKING:
    import geopandas
    import pandas as pd
    import xarray
    from matplotlib.axes import Axes

_MAX_BARS, _MAX_NAMES, _MAX_TRIED = 30, 12, 60
_FOREMOST = 3  # zones with the highest numbers, which a plot always names


@dataclass(frozen=True, repr=False)
class Release(published_release.Release):
    """A published release.

    `print(release)` lists its tables. `table(name)` and the properties with the names of tables (`cells`, `items`,
    `quantiles`, `moments`, ...) read them as data frames.

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
            raise RequestError(f"{self.path}: the rows of this release do not add up, as those of `sfumato zones` do")
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
            format: geotiff, geojson, csv, geoparquet, gpkg or pmtiles; None for that of the file's suffix.
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

    def zones(self, polygons: Any, id_column: str | None = None) -> pd.DataFrame:
        """Returns users of zones, such as tracts, from a heatmap. It costs no privacy budget.

        The errors include the noise, with the correlation between cells, and the places of users inside cells that a
        border cuts. What is estimated is the number of users whose counted location is in a zone.

        Args:
            polygons: a GeoDataFrame or GeoSeries, shapely polygons, or the path of a GeoJSON or GeoParquet file.
            id_column: the column or property of the zones' ids; a file needs it. Without it a frame's index or a
                polygon's number is its id.

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
        return published_release.data_frame(zones_of_release(self, zones_from(polygons, id_column)))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the release's main result with matplotlib.

        A heatmap's density, a map's cells, the users of zones, the most frequent items, the distribution function, the
        means, or a model's density. Bars and bands are 95% intervals. Maps have the shores and the main places of the
        release's geography.

        Args:
            ax: where to draw; by default the axes of a new figure.

        Returns:
            The axes.

        Raises:
            RequestError: the release has nothing to draw, or it is damaged.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(layout="constrained")
        listed = self.listed or {}
        if DENSITY_FILE in listed:
            self._plot_map(ax, self.density * float(self.manifest["results"]["users"]), "users per cell")
        elif "curve" in self.tables:
            self._plot_curve(ax)
        elif "items" in self.tables:
            self._plot_items(ax)
        elif "moments" in self.tables and len(self.moments):
            self._plot_moments(ax)
        elif "cells" in self.tables:
            self._plot_cells(ax)
        elif MODEL_FILE in listed:
            self._plot_model(ax)
        elif "zones" in self.tables and "moments" not in self.tables:
            self._plot_zones(ax)
        else:
            has = f"it has {', '.join(sorted(listed))}" if listed else "its manifest lists no files"
            raise RequestError(f"{self.path}: this release has nothing to plot; {has}")
        return ax

    def _plot_map(self, ax: Axes, values: np.ndarray[Any, np.dtype[np.float64]], unit: str) -> None:
        """Draws float64[side, side], row 0 in the north, over the region."""
        from matplotlib.colors import PowerNorm

        shown = np.maximum(values, 0.0)
        region = self._region()
        norm = PowerNorm(0.5, vmin=0.0, vmax=float(np.quantile(shown, 0.9995)) or float(shown.max()) or 1.0)
        extent = (region["west"], region["east"], region["south"], region["north"])
        image = ax.imshow(shown, cmap="inferno_r", norm=norm, extent=extent, interpolation="nearest")
        self._finish_map(ax, image, unit)

    def _plot_cells(self, ax: Axes) -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle

        cells = self.cells[self.cells["depth"] == self.cells["depth"].max()]
        boxes = [
            Rectangle((west, south), east - west, north - south)
            for west, south, east, north in cells[["west", "south", "east", "north"]].to_numpy()
        ]
        region = self._region()
        drawn = ax.add_collection(PatchCollection(boxes, cmap="inferno_r", array=cells["count"].to_numpy()))
        ax.set_xlim(region["west"], region["east"])
        ax.set_ylim(region["south"], region["north"])
        self._finish_map(ax, drawn, "users")

    def _plot_zones(self, ax: Axes) -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.colors import PowerNorm
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        table = self.arrow_table(ZONES_FILE)
        zones = table.to_pandas()
        if "level" in zones:
            zones = zones[zones["level"] == zones["level"].iloc[0]]
        polygons = shapely.from_wkb(zones["geometry"])
        shapes = [
            Outline.make_compound_path(*(Outline(ring.coords) for ring in shapely.get_rings(one))) for one in polygons
        ]
        users = zones["users" if "users" in zones else "count"].to_numpy()
        norm = PowerNorm(0.5, vmin=0.0, vmax=float(users.max(initial=1.0)))
        drawn = PatchCollection(map(PathPatch, shapes), cmap="inferno_r", array=users, norm=norm)
        ax.add_collection(drawn)
        region = self._region()
        ax.set(xlim=(region["west"], region["east"]), ylim=(region["south"], region["north"]))
        named = list[tuple[str, float, float]]()  # the highest counts first
        if "name" in zones:
            names = np.array(zone_names(table))[zones.index]
            middles = shapely.get_coordinates(shapely.point_on_surface(polygons))
            named = [(str(names[i]), *middles[i].tolist()) for i in np.argsort(-users, kind="stable")]
        self._finish_map(ax, drawn, "users", named)

    def _finish_map(self, ax: Axes, drawn: Any, unit: str, zones: Sequence[tuple[str, float, float]] = ()) -> None:
        region = self._region()
        ax.set_aspect(1 / np.cos(np.radians((region["south"] + region["north"]) / 2)))
        ax.set(xlabel="longitude, degrees", ylabel="latitude, degrees", title=self._title)
        ax.locator_params(nbins=5)
        if (figure := ax.get_figure()) is not None:
            figure.colorbar(drawn, ax=ax, label=unit)
        self._draw_geography(ax, zones)

    def _draw_geography(self, ax: Axes, zones: Sequence[tuple[str, float, float]]) -> None:
        """Draws shores and the names of the main places, where the release has them, and of zones.

        zones: names with the longitude and latitude of a point, the most important first.
        """
        from matplotlib.collections import LineCollection
        from matplotlib.patheffects import withStroke

        listed, foremost = self.listed or {}, zones[:_FOREMOST]
        basemap = Geography.of({BASEMAP_FILE: self.read(BASEMAP_FILE)} if BASEMAP_FILE in listed else {}).basemap
        places = list[tuple[str, float, float]]()
        if basemap is not None:
            shores = [ring for area in (*basemap.land, *basemap.water) for ring in area]
            ax.add_collection(LineCollection(shores, colors="#305478", linewidths=0.7), autolim=False)
            places = [(place.name, place.longitude, place.latitude) for place in basemap.places]
        figure: Any = ax.figure
        if (layout := figure.figure.get_layout_engine()) is not None:
            layout.execute(figure.figure)
        ax.apply_aspect()  # after the layout, as a drawing does: names have the room that both leave
        frame, halo, named = ax.get_window_extent(), [withStroke(linewidth=2, foreground="white")], dict[str, Any]()
        # The foremost zones always have their names, over others if need be.
        for number, (name, *place) in enumerate((*foremost, *places, *zones[_FOREMOST:_MAX_TRIED])):
            if name in named or len(named) == _MAX_NAMES or not frame.contains(*ax.transData.transform(place)):
                continue
            for may_cover, side in product((False, True)[: 1 + (number < len(foremost))], ("left", "right")):
                text = ax.annotate(
                    name.replace("$", r"\$"), (place[0], place[1]), (3 if side == "left" else -3, 3), ha=side,
                    textcoords="offset points", fontsize=8, clip_on=True, path_effects=halo,
                )  # fmt: skip
                box = text.get_window_extent()
                is_inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1
                if is_inside and (may_cover or not any(map(box.overlaps, named.values()))):
                    named[name] = box
                    ax.plot(*place, ".", color="black", markersize=3)
                    break
                text.remove()

    def _plot_items(self, ax: Axes) -> None:
        items = self.items[self.items["level"] == self.items["level"].min()].head(_MAX_BARS)[::-1]
        names = [str(name).replace("$", r"\$") for name in items["item"]]
        ax.barh(range(len(names)), items["count"], xerr=Z * items["stddev"], color="#b5367a", ecolor="#888888")
        ax.set_yticks(range(len(names)), names)
        ax.set(xlabel="users", title=self._title)

    def _plot_curve(self, ax: Axes) -> None:
        curve = self.curve
        ax.fill_between(curve["value"], curve["low"], curve["high"], color="#b5367a", alpha=0.25, linewidth=0)
        ax.plot(curve["value"], curve["share"], color="#b5367a")
        shown = self.quantiles
        ax.plot(shown["value"], shown["share"], "o", color="#3b0f70")
        ax.set(xlabel=self._column, ylabel="share of the users below", title=self._title, ylim=(0, 1))

    def _plot_moments(self, ax: Axes) -> None:
        moments = self.moments[self.moments["statistic"] == self.moments["statistic"].iloc[0]].reset_index(drop=True)
        errors = np.abs(moments[["low", "high"]].to_numpy().T - moments["value"].to_numpy())
        names = ["everybody" if name is None else str(name).replace("$", r"\$") for name in moments["group"]]
        ax.errorbar(moments["value"], range(len(names)), xerr=errors, fmt="o", color="#b5367a")
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set(xlabel=f"{moments['statistic'].iloc[0]} of {self._column}", title=self._title)

    def _plot_model(self, ax: Axes) -> None:
        region, side = self._region(), 128
        longitude = region["west"] + (np.arange(side) + 0.5) / side * (region["east"] - region["west"])
        latitude = region["north"] - (np.arange(side) + 0.5) / side * (region["north"] - region["south"])
        metres = (region["north"] - region["south"]) / side * 111_195
        x, y = np.meshgrid(longitude, latitude)
        additive = self.model.model.additive_table is not None
        answers, _ = self.model.answer(x.ravel(), y.ravel(), np.full(x.size, metres), additive=additive)
        self._plot_map(ax, answers.users.reshape(side, side), f"users in a square of {metres:,.0f} m")

    def _region(self) -> Mapping[str, float]:
        region: Mapping[str, float] = self.manifest["region"]
        return region

    @property
    def _column(self) -> str:
        column = self.manifest.get("column") or self.manifest["parameters"].get("column", "value")
        return str(column).replace("$", r"\$")

    @property
    def _title(self) -> str:
        epsilon, title = self.manifest["privacy"]["epsilon"], str(self.manifest.get("title") or "")
        made = f"sfumato {self.manifest['job']}, " + ("no privacy" if epsilon is None else f"ε = {epsilon:g}")
        return "\n".join(filter(None, (title.replace("$", r"\$"), period(self.manifest), made)))

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
