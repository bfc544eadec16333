"""Networks that answer range queries, learned from one noisy grid.

    cascade    what people may be behind the noisy counts: simulated worlds
    features   what a network sees of the counts around a square
    local      one network for all sizes: learned from simulated worlds, it answers from the counts around the square
    paper      the paper's own form: one network for each of k sizes, from a place to a count
    training   minibatches, early stopping and checkpoints for both (JAX, optax; the extra `neural`)

All of this is post-processing of noisy counts: none of it sees people.
"""
