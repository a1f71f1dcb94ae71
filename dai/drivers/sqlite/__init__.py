"""The driver of SQLite, by the standard library. Nothing else but the state store imports sqlite3."""
