"""``/replicas``: the local replica catalog and the replica location index (``dai.replicas``) over JSON, a module a
subject.

Who may read, write and load (tell the index) stands in ``[replicas.policy]``; what concerns the catalog as a whole is
for administrators where callers are identified.
"""
