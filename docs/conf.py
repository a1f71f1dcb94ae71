"""The documentation as a site: ``make docs`` writes it to build/docs, without a network."""

from importlib.metadata import version as version_of

project = "dai"
copyright = "its contributors, Apache License 2.0"
version = release = version_of("dai-dqp")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["decisions/README.md"]
html_theme = "furo"
html_title = "dai: data services and distributed queries"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing"]
"""Links out of docs/ lead to files of the repository; tests/test_documentation.py follows every link."""

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
