"""The interface of UDDI version 2.04: inquiry and publication over SOAP 1.1 (namespace ``types.NAMESPACE``).

``types`` declares each element once: messages are read and written by it, and the schema of the WSDL comes from it.
``structures`` turns entries into what UDDI calls them and back, ``finding`` has names, bags and qualifiers, ``service``
the operations and faults. Bytes to bytes: no HTTP.
"""
