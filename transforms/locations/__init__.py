"""From logs to shards: validated batches, one location a user, cohorts and shard indexes."""
