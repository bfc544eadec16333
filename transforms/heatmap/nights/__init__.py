r"""The posterior over nights: tonight's map from the noisy counts of all nights of a dataset. Pure post-processing.

    week_model -> night_posterior -> nights_state -> nights_update
                  sudden_changes --------------------/

`week_model` has the statistics of one family of four siblings over the weekdays. `night_posterior` goes down the tree
with it. `nights_state` is what one night leaves to the next, with its table. `sudden_changes` finds places that differ
tonight from what the nights before lead to expect. `nights_update` joins them.
"""
