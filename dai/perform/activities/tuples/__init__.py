"""Activities over streams of tuples: projections, joins, sorts, copies. ``expressions`` checks the expressions that
they compute."""
