"""Exchanges: they distribute a fragment's rows over the partitions that its consumers read."""
