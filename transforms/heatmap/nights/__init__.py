r"""The posterior over nights: tonight's map from the noisy counts of all nights of a dataset. Pure post-processing.

    week_model -> night_posterior -> nights_state -> nights_update
    sudden_changes -> changes_tonight -> event_memory --/

Read `nights_update` first: it takes in one night, and the others are its steps.

- `nights_state` is what one night leaves to the next, with its table.
- `week_model` has the statistics of one family of four siblings over the weekdays. `night_posterior` goes down the tree
  with it, from the state and tonight's counts to tonight's users.
- `sudden_changes` finds places that differ tonight from what the nights before lead to expect. `changes_tonight` keeps
  them out of the accumulators, and adds them to tonight's map. `event_memory` remembers them, and finds which last.
- `variance_scales` learns how fast shares drift, and how much nights differ.
"""
