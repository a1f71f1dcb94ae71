"""Demo data, made by code with fixed seeds, and its loading into a database.

``data`` makes Arrow tables, ``tables`` declares what they are in a database, ``load`` creates and fills them. They
stand beside the service, not in it: they use each database's own library, as the owner of the data would.
"""
