"""Networks that answer range queries, trained on one noisy grid.

    examples   simulated worlds that agree with the noisy counts, and training squares in them
    local      one network for all sizes, from the counts around a square to an answer
    paper      the paper's form: one network for each of k sizes, from a place to a count
    training   minibatches, early stopping and checkpoints for both (JAX, optax; the extra `neural`)

All of this is post-processing of noisy counts. None of it uses exact counts.
"""
