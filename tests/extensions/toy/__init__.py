"""A package from elsewhere: one of each kind, joined by the entry points of toy-1.0.dist-info and nothing else."""
