"""The engine that heatmaps, zones and ranges share: noisy counts of users at places, in adaptive sub-queries.

parameters       everything that shapes the counts, validated: `CountParameters`
methods/         which counts to query next, and the map they give: `Method`. A new method is one file
state            what a run knows between sub-queries: `Query`, `NoisyCounts`, `CountState`, `Estimate`
sub_queries      from a method's `Query` to the shards' `ShardQuery`, within the budget, and on to the next one
transform        `CountLocations`: the same loop in Beam, from paths of logs to the last state
estimator        the posterior of a tree's counts, as a map
rates            rates of categories, with their errors
plan             cost and accuracy, from public figures only
manifest         what a release states of its counts
"""
