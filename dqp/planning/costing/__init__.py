"""What an operator is expected to give and to cost, from the statistics of the sources."""
