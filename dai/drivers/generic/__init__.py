"""The driver of any other database, by SQLAlchemy: what no driver of its own exists for."""
