"""Secure aggregation's arithmetic: encode, add noise, sum modulo m inside a shard, decode, add shards."""
