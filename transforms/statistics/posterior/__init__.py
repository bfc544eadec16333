r"""The Bayesian estimator of a quadtree's nodes from all noisy results. Pure post-processing.

    full_tree -> inference -> estimator
                          \-> next_tree

`full_tree` holds a quadtree level by level, and assigns every result to its nodes. `inference` goes down the tree and
shrinks differences between siblings that noise can explain. `estimator` makes maps of a heatmap's state. `next_tree`
chooses the nodes to measure next. `unbiased` has the estimates without shrinkage.
"""
