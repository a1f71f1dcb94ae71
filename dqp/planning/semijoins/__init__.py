"""Semi-join reduction while a query runs: which keys filter which statement, in what form and order."""
