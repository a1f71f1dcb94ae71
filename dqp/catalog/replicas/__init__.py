"""Other tables with the same rows: those that the configuration names (``tables``), and copies of logical tables, which
a replica service names (``copies``). Imports the rest of the catalog but ``catalog``."""
