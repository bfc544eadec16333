r"""The Bayesian estimator: what all noisy results of a quadtree's nodes say together. Pure post-processing.

    full_tree -> measurements -> contrasts -> inference -> estimator
                                                       \-> next_tree

`full_tree` holds a quadtree level by level. `measurements` assigns every result to its nodes. `contrasts` learns how
much four siblings differ. `inference` goes down the tree and shrinks differences that noise alone could have made.
`estimator` makes maps of a heatmap's state with it. `next_tree` chooses the nodes to measure next. `unbiased` has the
estimates without shrinkage.
"""
