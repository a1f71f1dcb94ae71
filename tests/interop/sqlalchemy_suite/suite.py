"""SQLAlchemy's tests of dialects."""

from typing import Any
from unittest.mock import ANY

from sqlalchemy.testing import config, suite
from sqlalchemy.testing.suite import *  # noqa: F403


class ComponentReflectionTest(suite.ComponentReflectionTest):
    @classmethod
    def define_tables(cls, metadata: Any) -> None:
        """A perform document has no form feeds."""
        super().define_tables(metadata)
        for table in metadata.tables.values():
            if table.name == "no_constraints":
                table.comment = "no\nconstraints"

    def exp_fks(self, *arguments: Any, **options: Any) -> Any:
        """The service does not say how foreign keys are called."""
        expected = super().exp_fks(*arguments, **options)
        for keys in expected.values():
            for each in keys:
                each["name"] = ANY
        return expected

    def test_get_foreign_keys(self) -> None:
        config.skip_test("the service does not say how foreign keys are called")

    def test_get_foreign_keys_quoted_name(self) -> None:
        config.skip_test("the service does not say how foreign keys are called")

    def test_schema_cache(self) -> None:
        config.skip_test("the service says the schemas that have tables")


class QuotedNameArgumentTest(suite.QuotedNameArgumentTest):
    def test_get_view_definition(self) -> None:
        config.skip_test("the service does not say how views are defined")
