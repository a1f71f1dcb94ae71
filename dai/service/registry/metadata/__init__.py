"""The interfaces for metadata and for WSDL documents over SOAP 1.1: metadata of third parties about entries of UDDI and
WSDLs.

``types`` declares the elements (``uddi.elements``), ``references`` says what is meant by which entry, ``statements``
has the operations on metadata, ``interfaces`` those on WSDL documents, which ``documents`` reads; ``service`` takes a
message. Bytes to bytes: no HTTP.

Source: the functional specification of Grimoires (University of Southampton, 2006), namespace ``types.NAMESPACE``.
"""
