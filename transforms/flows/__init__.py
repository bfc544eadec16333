"""Origin-destination flows of trips, with a trusted curator's noise.

request          the options of `sfumato flows`
plan             the budget, with cost and accuracy from public figures: `FlowPlan`
user_trips       trips of users, at most K of each, and their codes in a tree of pairs
flow_tree        noisy counts of pairs: the only place where flows get noise
transform        `CountFlows`: from paths of logs to noisy counts
flow_estimate    noisy counts -> shrunk counts with intervals, and which pairs are listed
release, view    the flows as files -> the page
"""
