"""Resources of XML collections in tests."""

from dai.drivers import DriverOptions
from dai.drivers.collections.driver import Collections
from dai.streams.cancellation import Cancellation

PEOPLE = "musicians/folksingers"
ALLY = b'<entry id="1"><name>Ally</name><phone>01670</phone></entry>'
BEE = b'<entry id="2"><name>Bee</name><phone>01671</phone><phone>01672</phone></entry>'


def musicians(url: str) -> Collections:
    """A resource with a collection ``musicians/folksingers`` of two documents, ``ally`` and ``bee``."""
    driver = Collections.connect(url, DriverOptions(pool_size=4, pool_wait=10))
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("", "musicians")
        transaction.create_collection("musicians", "folksingers")
        transaction.add(transaction.collection(PEOPLE), [("ally", ALLY), ("bee", BEE)])
    return driver


def contents(driver: Collections, path: str = PEOPLE) -> dict[str, bytes]:
    """The documents of a collection by name."""
    with driver.store.transaction(Cancellation()) as transaction:
        chunks = list(transaction.chunks(transaction.collection(path)))
    return {each.name: each.content for chunk in chunks for each in chunk}
