"""Webhooks: changes of entries are sent to who has asked for them, at least once and in order.

``store`` keeps who wants what, and up to which change each has it, in the registry's database: after a restart it goes
on from there. ``sender`` sends. A receiver that refuses is asked again, later each time, and RETRIES times at most;
then the webhook stands still until its owner says that it goes on.
"""
