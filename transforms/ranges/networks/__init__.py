"""Networks that answer range queries, trained on one noisy grid: post-processing, which uses no exact counts."""
