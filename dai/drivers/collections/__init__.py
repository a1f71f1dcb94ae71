"""A resource of XML documents in collections. ``store`` keeps them in a database; nothing here reads XML."""
