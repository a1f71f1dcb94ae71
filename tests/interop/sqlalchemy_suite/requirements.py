"""What a resource behind a service has not, of what SQLAlchemy's tests ask for; and why."""

from sqlalchemy.testing.requirements import SuiteRequirements


class Requirements(SuiteRequirements):
    pass
