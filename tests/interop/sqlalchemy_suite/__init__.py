"""SQLAlchemy's own tests of dialects, run in a process of their own by tests/interop/test_sqlalchemy_suite.py."""
