"""Who is next: places for requests (``admission``), and turns of those who encode (``turns``)."""
