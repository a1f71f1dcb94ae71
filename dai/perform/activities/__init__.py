"""The activities: what a perform document can do. Each is declared once; ``dai.perform.activity.ACTIVITIES`` lists
them.

A new one goes into the module of its subject, or a new module. ``dai.perform.activity`` says how it is declared, and
``transform`` has a short one; ``dai schemas --write`` adds it to the schemas and to ``docs/activities.md``.
"""
