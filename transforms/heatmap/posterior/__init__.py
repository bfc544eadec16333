"""The estimator: what all noisy answers of a quadtree's nodes tell together. Pure post-processing.

    levels -> measurements -> contrasts -> infer -> growth

`levels` holds a quadtree level by level; `measurements` brings every answer to its nodes; `contrasts` learns how much
four siblings differ and shrinks what noise alone could have done; `infer` goes down the tree with it; `growth` says
which nodes are worth being measured next.
"""
