"""Range queries: how many users are in any square, answered from one private release (paper 003).

request         the options of `sfumato ranges build`, `answer` and `tune`
plan            the budget, with cost and accuracy from public figures: `RangesPlan`
field_counts    exact counts by base cell, and the noisy counts of a grid
methods, networks/   what learns from noisy counts: grids, networks and the choice between them
transform       `BuildRanges`: from paths of logs to a model
model, model_file, consistent_cells   the model, which answers squares, and its file
release, view   the model as files -> the page
query_files     files of squares: to answer, or a workload to learn from
tuner, width_search   the best cell width, predicted from public data
"""

from sfumato.transforms.ranges.model_file import open_model

__all__ = ["open_model"]
