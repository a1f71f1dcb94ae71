"""What flows: record batches, bytes, and the one queue between threads.

``stream`` defines ``Stream`` (tuples) and ``ByteStream`` (encoded results); ``mailbox`` is the bounded queue,
``fanout`` one source with several readers, ``cancellation`` the way to stop blocked work. It imports ``dai.errors`` and
``dai.plugins`` alone. A new primitive for moving or waiting goes here; what knows a format or a database does not.
"""
