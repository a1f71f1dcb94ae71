"""What a request asks for: its head (``head``, ``origins``), parameters, body, and the form of the answer
(``negotiation``). A new check of requests goes here."""
