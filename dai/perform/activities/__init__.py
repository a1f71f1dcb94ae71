"""The activities: what a perform document can do. Each is declared once; ``dai.perform.activity.ACTIVITIES`` lists
them.

One package for each subject. A new activity goes into the package of its subject, into a module there or a new one.
``dai.perform.activity`` says how it is declared, and ``transform.transform`` has a short one; ``dai schemas --write``
adds it to the schemas and to ``docs/activities.md``.
"""
