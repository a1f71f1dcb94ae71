"""Deliveries to and from other machines: one module for each protocol, under the same policy.

``addresses`` says which addresses the operator allows, and where a host leads. ``calls`` holds connections that a
cancellation or a time limit cuts. ``protocols`` lists the protocols of URLs: each has ``put`` (sends blocks as they
come) and ``got`` (the media type and the blocks as they come). ``mail`` only sends, ``streams`` are those of
sessions of other services. A new protocol is a module here with a line in ``PROTOCOLS``.

What is sent has its name at its receiver once all of it has arrived, where the protocol can do so. What is read goes on
where it broke off, if the server can and still has the same file. Credentials come from ``[delivery.accounts]`` alone,
and no message holds them.
"""
