"""Runs jobs: documents that outlive their request, with the phases of IVOA UWS 1.1
(https://www.ivoa.net/documents/UWS/).

::

    PENDING ──run──> QUEUED ──a worker is free──> EXECUTING ──> COMPLETED
       │                │                             ├───────> ERROR     failed, or the service was stopped or killed
       └────abort───────┴──────────abort──────────────┴───────> ABORTED

A job for which a worker is free begins as EXECUTING.

The state database has the jobs and their progress; the results are files (``dai.service.results``). Both are destroyed
at the job's destruction time. If a service dies, its queued and running jobs become ERROR when it starts again.

``jobs`` has what clients ask for, the queue and the keeping; ``execution`` carries out one job; ``phases`` says which
phase may follow which.
"""
