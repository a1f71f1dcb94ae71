"""Reads XML from users, expressions and stored documents, in a process of its own.

An expression is a program: it may run for ever and make a large result of a small document, and neither libxml2 nor
Saxon can be stopped from another thread. So ``worker`` runs one in a process with bounds on memory and time, which
opens nothing and is killed when nobody wants its results any more; ``process`` is the service's end of it. A module for
each language: ``checking`` (documents to store), ``xpath``, ``xupdate``, ``xquery``; they import nothing of the
service. A new language is one more, in ``LANGUAGES`` of ``worker``. ``xslt`` runs a style sheet in a process likewise.
"""
