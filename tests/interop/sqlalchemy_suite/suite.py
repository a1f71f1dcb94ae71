"""SQLAlchemy's tests of dialects."""

from sqlalchemy.testing.suite import *  # noqa: F403
