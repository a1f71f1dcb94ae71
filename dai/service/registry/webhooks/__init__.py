"""Webhooks: changes of entries are sent to registered addresses, at least once and in order.

``store`` keeps the webhooks, and the last change that each has got, in the registry's database: after a restart they
go on from there. ``sender`` sends. A receiver that refuses is asked again, later each time, and RETRIES times at most; then the webhook
stands still until its owner says that it goes on.
"""
