"""Streams of data, and waiting for them.

``stream`` defines ``Stream`` (tuples) and ``ByteStream`` (encoded results), ``meaning`` what columns mean;
``mailbox`` is the bounded queue, ``fanout`` one source with several readers, ``limited`` the first rows of a result.
Below them: ``cancellation`` is the way to stop blocked work, ``waiting`` the condition variable that such work waits
on, ``tracing`` says where work stands in a trace (``recorded``: with OpenTelemetry), ``spool`` has the temporary
files of what has no room in memory, ``tally`` counts against a limit, ``files`` notices files that are replaced,
``program`` runs one of ours in a process, ``machine`` is the memory and the cores that a process may have.

It imports ``dai.errors`` and ``dai.plugins`` alone. A new primitive for moving or waiting goes here; what knows a
format or a database does not.
"""
