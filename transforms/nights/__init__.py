"""The posterior over nights: tonight's map from the noisy counts of all nights of a dataset. Pure post-processing.

Read `nights_update` first: it takes in one night, and the others are its steps. `nights_state` is what one night leaves
to the next, with its table. `night_posterior` goes down the tree, from the state and tonight's counts to tonight's
users. `sudden_changes` finds places that differ tonight from what the nights before lead to expect, keeps them out of
the accumulators, and adds them to tonight's map. `night` reads the state and the counts of earlier releases, and says
what the release of a night states; `warm_start` reads an earlier map to start from.
"""
