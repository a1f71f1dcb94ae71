"""``/registry``: what is published and found (``dai.service.registry``), a module a subject: entries over JSON,
queries in SPARQL, and the changes of entries, which others follow.

Who may read and write stands in ``[registry.policy]``; an entry is changed by its owner and by administrators, and seen
by its ``readers``.
"""
