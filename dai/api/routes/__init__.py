"""The endpoints, one module a subject, each with a ``router``: coroutine functions, declared with ``@router.get`` and
the like, with models of their parameters (``requests.parameters.Asked``) and ``responses=answers(…)`` of their errors.
A new endpoint goes into the module of its subject and into the table of calls in ``docs/service.md``; a new subject's
router also into ``ROUTERS`` of ``app``. ``dai schemas --write`` adds it to ``schemas/openapi.json``.
"""
