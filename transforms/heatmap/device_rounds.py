"""An adaptive map as a series of tasks: the heatmap's default method, with devices instead of logs.

Each sub-query of the method is a task, which the collector publishes. Its tree follows from the noisy counts of the
rounds before, so all of it is post-processing. The method's budget is the map's epsilon without what each round spends
on the two noisy numbers of reports: COUNT_SHARE each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population, Trust
from sfumato.schemas.tree import Tree, node_names
from sfumato.transforms.counting.methods import Adaptive
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.counting.sub_queries import advance, first_state
from sfumato.transforms.heatmap.release import release_files
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.shard_sums import ShardTotals
from sfumato.transforms.split.collect import Collected, release_id_of
from sfumato.transforms.split.task import COUNT_SHARE, Task

_COUNTS_SHARE = 2 * COUNT_SHARE
MAX_MAP_ENTRIES = 4096  # of a round's tree, so that a report has at most 70 kB
_TOLERANCE = 1e-9  # of an epsilon that a file states in decimal digits


def first_task(text: str, users: int) -> Task:
    """Returns the first round of an adaptive map.

    Args:
        text: a task file without tree and map, whose depth and epsilon are those of the complete map.
        users: the public number of users to plan for.

    Raises:
        RequestError: the file states no such map.
    """
    try:
        content = json.loads(text)
        whole = content | {"tree": [], "map": {"epsilon": content["epsilon"], "users": users}}
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise RequestError(f"plan: is not a task file ({error})") from None
    if {"tree", "map"} & set(content):
        raise RequestError("plan: has a tree or a map already; leave them out")
    state = _first_state(Task.parse(json.dumps(whole)))
    assert state.query is not None
    own = {"tree": node_names(_next_tree(state).nodes[1:]), "epsilon": _epsilon_of(state.query.cost)}
    return Task.parse(json.dumps(whole | own, separators=(",", ":")))


def map_state(tasks: Sequence[Task], rounds: Sequence[Collected]) -> CountState:
    """Returns the map's state after some rounds: with the next query, or complete.

    tasks: all rounds so far, in order; rounds: their counts. Raises RequestError: the tasks are not those of one map.
    """
    state = _first_state(tasks[0])
    for number, (task, counts) in enumerate(zip(tasks, rounds, strict=True)):
        if number:
            task.check_follows(tasks[number - 1])
        elif task.map is None or task.map.round != 1:
            raise RequestError("task: give all rounds of the map, from the first on, in order")
        query = state.query
        if query is None or not math.isclose(_epsilon_of(query.cost), task.epsilon, rel_tol=_TOLERANCE):
            raise RequestError(f"task: round {number + 1} is not the one that follows from the map's epsilon and users")
        state = replace(state, query=replace(query, encoding=TreeEncoding(task.counted)))
        sums = ShardTotals(np.array(counts.counts, dtype=np.int64), state.shard_plan.shards)
        state = advance(state, sums, _parameters(task))
    stddev = LAPLACE.stddev(tasks[-1].count_epsilon) / math.sqrt(2)  # of the mean of two
    counted = replace(state.population, counted=float(np.mean(rounds[-1].reports)), noise_stddev=stddev)
    return replace(state, population=counted)


def next_task(last: Task, state: CountState) -> Task:
    """Returns the map's next round. last: the round before; state: after it, with a query."""
    assert state.query is not None  # the map is not complete
    return last.next_round(_next_tree(state), _epsilon_of(state.query.cost))


def map_files(tasks: Sequence[Task], state: CountState, created: str, code: str | None = None) -> dict[str, bytes]:
    """Returns the files of a complete map's release by name, the manifest last.

    created: ISO 8601 time. code: digest of the running code, if it is stated.
    """
    parameters, grid = _parameters(tasks[0]), tasks[0].grid
    stated = {
        "region": asdict(grid.region),
        **parameters.metadata(),
        "columns": {},
        "tasks": [{**json.loads(task.text), "id": task.id.hex()} for task in tasks],
    }
    metadata = ReleaseMetadata(
        "heatmap", release_id_of(tasks[0]), created, "keys of two operators", True, stated, code=code
    )
    return release_files(state, parameters, metadata, grid)


def _parameters(task: Task) -> CountParameters:
    assert task.map is not None
    return CountParameters(
        depth=task.depth,
        trust=Trust.SPLIT,
        epsilon=task.map.epsilon,
        population=task.map.users,
        population_share=_COUNTS_SHARE,
        contribution="one" if task.max_value == 1 else "all",
        gamma=None if task.max_value == 1 else task.max_value,
        method=Adaptive(max_entries=MAX_MAP_ENTRIES),
    )


def _first_state(task: Task) -> CountState:
    if task.map is None:
        raise RequestError("task: is not a round of a map")
    parameters = _parameters(task)
    cost = parameters.admission().cost
    population = Population(float(task.map.users), "public", cost)
    return first_state(population, parameters.budget.charge(cost), parameters)


def _next_tree(state: CountState) -> Tree:
    assert state.query is not None
    assert isinstance(state.query.encoding, TreeEncoding)
    return state.query.encoding.tree


def _epsilon_of(cost: float) -> float:
    """Returns the epsilon of a task whose counts cost this much."""
    return cost / (1 - _COUNTS_SHARE)
