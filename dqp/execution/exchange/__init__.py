"""From a fragment's rows to the partitions that its consumers read."""
