"""Private heatmaps: the counts of `transforms/counting` as a map, its release and its page.

request      the options of `sfumato heatmap` and `sfumato plan`, and of each method
plan         what a heatmap, several, or each trust model costs, as text. `counting/plan` computes it
transform    `CountHeatmap`: from paths of logs to the last state, by a key that is bound to all options
slot_maps    the maps of every slot of time
release      that state -> the files of a release
view, view_texts   those files -> the page, and its words
device_rounds  a map of devices: the tasks of `transforms/split` that its sub-queries are, and its release
"""
