"""The driver of DuckDB files and in-memory databases, by DuckDB's relation API."""
