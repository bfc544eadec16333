"""The paper's form of spatial neural histograms (`--network paper`), beside its authors' logs and local networks.

    SFUMATO_DATA=... python -m benchmarks.snh_paper train [--weights uniform] [--epsilon 0.05 --cell 0.0293] # an hour
    SFUMATO_DATA=... python -m benchmarks.snh_paper logs     # the error by epoch of all trainings, finished or not
    SFUMATO_DATA=... python -m benchmarks.snh_paper figures  # the paper's figures in small; about half an hour

`train` and `logs` have the setting of the authors' logs: SF cabs, space scaled to a side of 10, the first of 8 networks
(squares of 0.02375), judged by 10,000 squares of 0.02 to 0.0275 around people. With the weights `starts`, the workload
is 10,000 of the starts themselves, which is not private; with `gowalla` it is the paper's, Gowalla's check-ins in the
region, where they are in SFUMATO_DATA (benchmarks/public_data.py). `figures` varies one thing at a time: 200,000
starts, epsilon 0.05, cells by the rule for grids, the same squares, 500 epochs, 10,000 other starts as the workload.
Each command goes on where it was stopped, from the files in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.range_methods import BASELINES
from benchmarks.param_select import PublishedWidths, paper_features, uniform
from benchmarks.range_queries import QUERIES, UNIT, cabs, gowalla
from sfumato.schemas.ranges import Boxes, Field, Sizes
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, NoisyGrid
from sfumato.transforms.ranges.methods import PlainGrid, SpatialNeural
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.networks.paper import (
    EPOCHS,
    PaperNetworks,
    PaperTrained,
    PaperTraining,
    forward,
    paper_training,
    train_paper,
)
from sfumato.transforms.ranges.width_search import QuerySample, mean_relative_error

SIZES = Sizes(0.02 * UNIT, 0.0275 * UNIT)  # that the first of the authors' networks is judged by
EVERY = 20  # epochs from one judgement to the next
POINTS = 10_000  # of a workload
AT = (100, 200, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000)
# github.com/szeighami/SNH: tests/test_sf_cabs/0/results.json of 16 October 2021, whose conf.json says epsilon 0.05 and
# cells of 0.0293: means of the last 100 epochs; and the README's log, committed on 2 August 2021 in one commit with a
# run.py of epsilon 0.2 and cells of 0.01544: single epochs.
PUBLISHED = {
    (0.05, 0.0293): (0.1235, 0.1127, 0.1121, 0.1072, 0.1064, 0.1025, 0.1027, 0.1, 0.1028, 0.0971, 0.0958, 0.0975),
    (0.2, 0.01544): (0.1117, 0.1000, 0.0919, 0.0883, 0.0869, 0.0838, 0.0744, 0.0788, 0.0707, 0.0709, 0.0713, 0.0655),
}
KEY = RunKey.derive(FixedSecret(b"snh"), {})


def workload(kind: str, exact: ExactCounts) -> Boxes | None:
    """Places like those to be queried: None for all places alike, or base cells of some starts or of all check-ins."""
    if kind == "uniform":
        return None
    if kind == "gowalla":
        exact = gowalla(cabs(False)[1].grid.region)
        x, y = (np.repeat(axis, exact.users).astype(np.float64) for axis in exact.xy)
        return Boxes(x, y, x + 1, y + 1)
    x, y = (axis.astype(np.float64) for axis in exact.xy)
    chosen = np.random.default_rng(5).choice(len(x), POINTS, p=exact.users / exact.users.sum())
    return Boxes(x[chosen], y[chosen], x[chosen] + 1, y[chosen] + 1)


def train(folder: Path, weights: str, epsilon: float, cell: float, epochs: int, batch: int | None) -> None:
    """Trains the network of the authors' logs, and appends its errors to a file."""
    exact, field = cabs(True)
    spec = CollectionSpec(field, float(exact.users.sum()), epsilon, SIZES)
    grid = PlainGrid(cell * UNIT).collect(exact, spec, KEY)
    queries = QuerySample.draw(exact, field, SIZES, QUERIES, np.random.default_rng(99))
    [training] = paper_training(grid, spec, 1, workload(weights, exact))
    name = weights if batch is None else f"{weights}, batches of {batch}"
    curve = folder / f"{epsilon:g}_{cell:g}_{name}_{epochs}.jsonl"
    began: dict[str, float] = {}  # of the first epoch after a checkpoint

    def judge(epoch: int, *found: Any) -> None:
        began.setdefault("epoch", epoch)
        began.setdefault("seconds", time.process_time())
        if epoch % EVERY:
            return
        seconds = (time.process_time() - began["seconds"]) / max(epoch - began["epoch"], 1)
        line: dict[str, float] = {"epoch": epoch, "places": len(training.places), "seconds": seconds}
        for which, parameters in zip(("last", "best"), found, strict=True):
            member = jax.tree.map(lambda leaf: np.array(leaf[0]), parameters)
            model = PaperNetworks.from_grid(grid, spec, [PaperTrained(training.size, 0.0, member)])
            line[which] = queries.error(model.answer(queries.boxes).users, spec.users)
        with curve.open("a") as file:
            print(json.dumps(line), file=file)

    train_paper(training, epochs=epochs, patience=epochs, batch=batch, observe=judge)


def logs(folder: Path) -> Iterator[str]:
    """Error by epoch of the trainings, beside the authors' logs."""
    for (epsilon, cell), published in PUBLISHED.items():
        curves = {}
        for path in sorted(folder.glob(f"{epsilon:g}_{cell:g}_*.jsonl"), reverse=True):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            curves[path.stem.split("_")[2]] = {int(line["epoch"]): line for line in lines}
        header = ["epoch", "the authors' log"]
        for weights, curve in curves.items():
            places = curve[max(curve)]["places"]
            header += [f"{weights} ({places:,.0f} places)", "its least training loss"]
        rows = [header]
        for epoch, value in zip(AT, published, strict=True):
            row = [f"{epoch:,}", f"{value:.4f}"]
            for curve in curves.values():
                near = [line["last"] for at, line in curve.items() if epoch - 100 < at <= epoch]
                row += [f"{np.mean(near):.4f}", f"{curve[epoch]['best']:.4f}"] if epoch in curve else ["-", "-"]
            rows.append(row)
        ends = [one[max(one)] for one in curves.values()]
        rows.append(["epochs run", "", *(text for end in ends for text in (f"{end['epoch']:,}", ""))])
        rows.append(["CPU s an epoch", "", *(text for end in ends for text in (f"{end['seconds']:.2g}", ""))])
        yield f"Epsilon {epsilon:g}, cells of {cell:g}\n\n{markdown_table(rows)}"
        yield others(epsilon, cell)


def others(epsilon: float, cell: float) -> str:
    """What a grid and a local network make of the same setting."""
    exact, field = cabs(True)
    spec = CollectionSpec(field, float(exact.users.sum()), epsilon, SIZES)
    queries = QuerySample.draw(exact, field, SIZES, QUERIES, np.random.default_rng(99))
    rows = [["cells", "grid", "grid, cells at least 0", "local network"]]
    for text, width in ((f"{cell:g}, as above", cell * UNIT), ("by the rule for grids", spec.default_width)):
        grid = PlainGrid(width).collect(exact, spec, KEY)
        answers = [
            np.maximum(grid.table().sum(queries.boxes), 0),
            grid.table(np.maximum(grid.users, 0)).sum(queries.boxes),
            local_network(grid, spec).answer(queries.boxes).users,
        ]
        rows.append([text, *(f"{queries.error(one, spec.users):.4f}" for one in answers)])
    return markdown_table(rows)


def local_network(grid: NoisyGrid, spec: CollectionSpec) -> Model:
    """One local network that is trained on the grid."""
    method = SpatialNeural(spec.default_width, models=1)
    return method.model(grid, spec, [method.train(one) for one in method.trainings(grid, spec)])


@dataclass(frozen=True)
class Setting:
    """A point of a figure.

    Attributes:
        epsilon: of the counts.
        users: in the counts.
        width_by: who chooses the width of a cell, one of WIDTHS.
        cells: a factor of that width.
        high: the largest square; the least has 0.02.
        models: k.
        layers: with swish.
        width: units of a layer.
        by_size: the size is an input of the networks (SNH+QS).
        seed: of noise and training.
        local: whether a local network is trained too.
    """

    epsilon: float = 0.05
    users: int = 200_000
    width_by: str = "rule"
    cells: float = 1.0
    high: float = 0.0275
    models: int = 1
    layers: int = 20
    width: int = 80
    by_size: bool = False
    seed: int = 0
    local: bool = False


COLUMNS = {"paper": "paper's form", "local": "local network", "grid": "grid"}
LOW, STEPS = 0.02, 500  # the least square; epochs
BASE = Setting(local=True)
WIDE = Setting(high=0.08)
QUERY_SIZES = (0.02, 0.04, 0.06, 0.08)
CABS_ENTROPY = 7.797943  # of Gowalla's check-ins in San Francisco, in the authors' city_features_fromGW.csv
RIVALS = ("dawa", "privtree", "ag", "ug")
WITH_RIVALS = ("Figures 6, 7 and 9: epsilon", "Figure 8 a: users")
FIGURES: dict[str, list[Setting]] = {
    "Figures 6, 7 and 9: epsilon": [replace(BASE, epsilon=one) for one in (0.05, 0.1, 0.2, 0.4)],
    "Figures 6, 7 and 9: seeds": [replace(BASE, seed=one, local=one == 0) for one in (0, 1, 2)],
    "Figure 8 a: users": [replace(BASE, users=one, local=one == 200_000) for one in (50_000, 100_000, 200_000)],
    "Figure 12, right: who chooses the width of a cell": [
        replace(BASE, epsilon=epsilon, width_by=one, local=one == "rule")
        for epsilon in (0.05, 0.2)
        for one in ("rule", "paramselect", "ug")
    ],
    "Figure 13: width of a cell": [replace(BASE, cells=one, local=one == 1) for one in (0.5, 0.7, 1.0, 1.4, 2.0)],
    "Figure 14: layers": [replace(BASE, layers=one, local=one == 20) for one in (1, 2, 5, 10, 20, 40)],
    "Section 6.1.2: units of a layer": [replace(BASE, width=one, local=one == 80) for one in (20, 40, 80)],
    "Figure 11: k, for squares of 0.02 to 0.08": [replace(WIDE, models=one, local=one == 4) for one in (1, 2, 4)],
    "Figure 10: 1 if the size is an input, for squares of 0.02 to 0.08": [
        replace(WIDE, by_size=one) for one in (False, True)
    ],
}


def cell_width(setting: Setting, spec: CollectionSpec) -> float:
    """The width of a cell in metres, by the rule for grids, by the uniform grid's, or by the published labels."""
    if setting.width_by == "rule":
        return spec.default_width * setting.cells
    if setting.width_by == "ug":
        return uniform(spec) * setting.cells
    data = Path(os.environ["SFUMATO_DATA"])
    labels = PublishedWidths.read(data)
    features = paper_features(spec.users, spec.epsilon, CABS_ENTROPY)
    return float(labels.trees(labels.trained).predict([features])[0]) * UNIT * setting.cells


def collected(setting: Setting) -> tuple[ExactCounts, ExactCounts, CollectionSpec]:
    """The cabs that count, those of the workload, and what a method knows."""
    everyone, field = cabs(True)
    order = np.random.default_rng(1).permutation(np.repeat(everyone.codes, everyone.users))
    exact, rest = (ExactCounts.from_codes(everyone.depth, one) for one in (order[: setting.users], order[-POINTS:]))
    sizes = Sizes(LOW * UNIT, setting.high * UNIT)
    return exact, rest, CollectionSpec(field, float(setting.users), setting.epsilon, sizes)


def sample(exact: ExactCounts, field: Field, low: float, high: float) -> QuerySample:
    """Squares around the cabs that count."""
    return QuerySample.draw(exact, field, Sizes(low * UNIT, high * UNIT), QUERIES, np.random.default_rng(99))


def rivals(setting: Setting, low: float, high: float) -> list[str]:
    """The errors of RIVALS for squares of a range of sizes."""
    exact, _, spec = collected(setting)
    queries = sample(exact, spec.field, low, high)
    found = [mean_relative_error(BASELINES[name](), exact, spec, queries, [setting.seed]) for name in RIVALS]
    return [f"{one:.4f}" for one in found]


def errors(setting: Setting) -> dict[str, list[float]]:
    """The error of each method: of all sizes, then of QUERY_SIZES."""
    exact, rest, spec = collected(setting)
    key = KEY.narrowed({"seed": setting.seed}) if setting.seed else KEY
    grid = PlainGrid(cell_width(setting, spec)).collect(exact, spec, key)
    trainings = paper_training(grid, spec, setting.models, workload("starts", rest))
    if setting.by_size:
        trainings = [sized(one, grid, spec, setting.models, rest) for one in trainings]
    trained = [
        train_paper(one, layers=setting.layers, width=setting.width, epochs=STEPS, patience=STEPS, seed=setting.seed)
        for one in trainings
    ]
    model = PaperNetworks.from_grid(grid, spec, trained)
    local = local_network(grid, spec) if setting.local else None
    found: dict[str, list[float]] = {}
    for low, high in ((LOW, setting.high), *((0.99 * size, size) for size in QUERY_SIZES)):
        queries = sample(exact, spec.field, low, high)
        answers = {
            "paper": sized_answers(model, queries, spec.sizes)
            if setting.by_size
            else model.answer(queries.boxes).users,
            "grid": np.maximum(grid.table().sum(queries.boxes), 0),
        }
        if local is not None:
            answers["local"] = local.answer(queries.boxes).users
        for name, users in answers.items():
            found.setdefault(name, []).append(queries.error(users, spec.users))
    return found


def sized(one: PaperTraining, grid: NoisyGrid, spec: CollectionSpec, models: int, rest: ExactCounts) -> PaperTraining:
    """The training data of a network whose inputs are a place and a size: two sizes of its range at each place."""
    half = (spec.sizes.high - spec.sizes.low) / models / 2
    around = replace(spec, sizes=Sizes(one.size - half, one.size + half))
    parts = paper_training(grid, around, 2, workload("starts", rest))
    own = [np.full(len(part.places), (part.size - one.size) / half) for part in parts]
    places = [np.column_stack([part.places, size]) for part, size in zip(parts, own, strict=True)]
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "weights")]
    return PaperTraining(one.size, one.number, np.concatenate(places).astype(np.float32), *columns)


def sized_answers(model: PaperNetworks, queries: QuerySample, trained: Sizes) -> NDArray[np.float64]:
    """Users of queries, float64[q], by networks whose inputs are a place and a size. trained: the range of sizes."""
    side, sizes = float(model.x_edges[-1]), np.array([network.size for network in model.networks])
    metres = (queries.boxes.x1 - queries.boxes.x0) * model.cell_metres[0]
    half = (trained.high - trained.low) / len(sizes) / 2
    nearest = np.abs(metres[:, None] - sizes).argmin(axis=1)
    inputs = np.column_stack([np.column_stack(queries.boxes.middles) * 10 / side - 5, (metres - sizes[nearest]) / half])
    users = np.zeros(len(metres))
    for number, network in enumerate(model.networks):
        users[nearest == number] = forward(network.parameters, inputs[nearest == number].astype(np.float32))
    return np.maximum(users, 0)


def figures(folder: Path) -> Iterator[str]:
    """A table for each figure, from the file of errors; what it lacks is computed."""
    path = folder / "figures.jsonl"
    known: dict[str, dict[str, list[float]]] = {}
    if path.exists():
        known = dict(json.loads(line) for line in path.read_text().splitlines())
    for title, settings in FIGURES.items():
        values = {name: {asdict(one)[name] for one in settings} for name in asdict(BASE) if name != "local"}
        changed = [name for name, different in values.items() if len(different) > 1]
        compared = title in WITH_RIVALS
        rows = [[*changed, *COLUMNS.values(), *(RIVALS if compared else ())]]
        for setting in settings:
            name = json.dumps(asdict(setting))
            if name not in known:
                known[name] = errors(setting)
                with path.open("a") as file:
                    print(json.dumps([name, known[name]]), file=file)
            found = [known[name].get(method, [math.nan])[0] for method in COLUMNS]
            cells = ["-" if math.isnan(one) else f"{one:.4f}" for one in found]
            varied = [asdict(setting)[name] for name in changed]
            others = rivals(setting, LOW, setting.high) if compared else []
            rows.append([*(one if isinstance(one, str) else f"{one:,}" for one in varied), *cells, *others])
        yield f"{title}\n\n{markdown_table(rows)}"
    wide = replace(WIDE, models=4, local=True)
    found = known[json.dumps(asdict(wide))]
    rows = [["size", *COLUMNS.values(), *RIVALS]]
    for at, size in enumerate(QUERY_SIZES):
        own = [f"{found[method][1 + at]:.4f}" for method in COLUMNS]
        rows.append([f"{size:g}", *own, *rivals(wide, 0.99 * size, size)])
    yield f"Figure 8 b: squares of one size, by the model of k = 4\n\n{markdown_table(rows)}"


def main() -> None:
    """Trains, or prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "logs", "figures"))
    parser.add_argument("--weights", choices=("uniform", "starts", "gowalla"), default="uniform")
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--cell", type=float, default=0.0293, help="width of a cell; the side of the space is 10")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--batch", type=int, help="places in a step; default: all")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sfumato-snh-paper")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.what == "train":
        train(options.folder, options.weights, options.epsilon, options.cell, options.epochs, options.batch)
        return
    for text in (logs if options.what == "logs" else figures)(options.folder):
        print(text, flush=True)


if __name__ == "__main__":
    main()
