"""Webhooks: changes of entries are sent to registered addresses, at least once and in order.

``store`` keeps the webhooks, and the last change that each has got, in the registry's database: after a restart they
go on from there. ``sender`` sends. A receiver that refuses gets the changes again, each time after a longer pause, and
at most RETRIES times; then the webhook is stopped until its owner starts it again.
"""
