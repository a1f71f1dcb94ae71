"""Documents whose blocks come as frames."""

from tests.api.conftest import DOCUMENT, statement

SQL = "select i, s from numbers where i < 250"
PAYLOAD = DOCUMENT.format(
    statement(SQL) + '<outputStream name="out" representation="payload"><fromLocal from="rows"/></outputStream>'
)
ARROW = DOCUMENT.format(
    statement(SQL)
    + '<sqlResultsToArrow name="e"><resultSet from="rows"/><arrow name="a"/></sqlResultsToArrow>'
    + '<outputStream name="out"><fromLocal from="a"/></outputStream>'
)
CSV = DOCUMENT.format(
    statement(SQL)
    + '<sqlResultsToCSV name="e"><resultSet from="rows"/><csv name="a"/></sqlResultsToCSV>'
    + '<outputStream name="out"><fromLocal from="a"/></outputStream>'
)
