"""Activities over tuples on their way: projections, joins, sorts, copies. ``expressions`` has what they compute."""
