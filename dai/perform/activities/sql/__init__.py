"""Activities over the database of the resource: statements, procedures, loads, and its schema."""
