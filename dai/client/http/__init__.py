"""HTTP as the client speaks it: connections, retries, bodies that break off, problem documents."""
