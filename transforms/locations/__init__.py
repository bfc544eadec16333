"""From logs to shards: validated batches, one location a user, and shard indexes."""
