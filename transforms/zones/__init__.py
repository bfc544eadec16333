"""Users in public zones: the sub-queries of `transforms/counting`, with nested zones instead of a tree's cells.

request           the options of `sfumato zones`, from logs and from a published heatmap
plan              the levels to query, with their shares of the budget: `ZoneLevels`
transform         `CountZones`: from paths of logs to the last state
release, view     that state -> the estimates of all levels, as files -> the page
area_estimates, release_zones   users of zones from a published heatmap, without logs
"""
