"""The table of methods: what each takes, and which right it needs. Patterns are SQL patterns, as clients send them."""

from __future__ import annotations

from dataclasses import dataclass

from dai.replicas.catalog import operations
from dai.replicas.catalog.operations import Index
from dai.replicas.codes import LOGICAL, TARGET
from dai.replicas.names import check_name
from dai.replicas.rpc import catalog, changes, index, service
from dai.replicas.rpc.calls import Run
from dai.replicas.rpc.changes import bulk, change


@dataclass(frozen=True)
class Method:
    """``before``: how many arguments come first; ``items``: how many make an item of the list that follows, 0: there is
    none. ``right``: which right of the caller it needs. ``run`` takes the arguments and the items and gives the
    texts of the results; an awaitable of them where that takes time; a change of the catalog as ``Submitted``."""

    before: int
    run: Run
    right: str
    items: int = 0


_MAPPINGS = {
    "lrc_create": (operations.create, lambda pair: pair[0]),
    "lrc_add": (operations.add, lambda pair: pair[0]),
    "lrc_delete": (operations.delete, ",".join),
    "lrc_renamelfn": (operations.rename_logical, lambda pair: pair[0]),
    "lrc_renamepfn": (operations.rename_target, lambda pair: pair[0]),
}
READ, CHANGE, READ_INDEX, STATISTICS, ADMINISTER = "lrc_read", "lrc_update", "rli_read", "stats", "admin"
METHODS: dict[str, Method] = {
    **{name: Method(2, change(run, changes.pair, about), CHANGE) for name, (run, about) in _MAPPINGS.items()},
    **{f"{name}_bulk": Method(0, bulk(run, changes.pair, list), CHANGE, 2) for name, (run, _) in _MAPPINGS.items()},
    "lrc_clear": Method(0, changes.clear, ADMINISTER),
    "lrc_get_pfn": Method(3, catalog.partners(LOGICAL), READ),
    "lrc_get_lfn": Method(3, catalog.partners(TARGET), READ),
    "lrc_get_pfn_wc": Method(3, catalog.matching(LOGICAL), READ),
    "lrc_get_lfn_wc": Method(3, catalog.matching(TARGET), READ),
    "lrc_get_pfn_bulk": Method(0, catalog.partners_bulk(LOGICAL), READ, 1),
    "lrc_get_lfn_bulk": Method(0, catalog.partners_bulk(TARGET), READ, 1),
    "lrc_exists": Method(2, catalog.exists, READ),
    "lrc_exists_bulk": Method(1, catalog.exists_bulk, READ, 1),
    "lrc_mapping_exists": Method(2, catalog.mapping_exists, READ),
    "lrc_attr_create": Method(3, change(operations.define, changes.attribute, lambda each: each.name), CHANGE),
    "lrc_attr_delete": Method(
        3,
        lambda rpc, before, items: change(
            operations.undefine(before[2] == "1"), lambda texts: changes.attribute(texts[:2]), lambda each: each.name
        )(rpc, before, items),
        CHANGE,
    ),
    "lrc_attr_get": Method(2, catalog.attributes, READ),
    "lrc_attr_add": Method(5, change(operations.add_values, changes.value, lambda each: each.key), CHANGE),
    "lrc_attr_modify": Method(5, change(operations.modify_values, changes.value, lambda each: each.key), CHANGE),
    "lrc_attr_remove": Method(3, change(operations.remove_values, changes.value, lambda each: each.key), CHANGE),
    "lrc_attr_add_bulk": Method(0, bulk(operations.add_values, changes.bulk_value, changes.key_and_name), CHANGE, 5),
    "lrc_attr_remove_bulk": Method(
        0, bulk(operations.remove_values, changes.bulk_value, changes.key_and_name), CHANGE, 3
    ),
    "lrc_attr_value_get": Method(3, catalog.values, READ),
    "lrc_attr_value_get_bulk": Method(2, catalog.values_bulk, READ, 1),
    "lrc_attr_search": Method(7, catalog.search, READ),
    "lrc_rli_add": Method(3, changes.add_index, ADMINISTER),
    "lrc_rli_delete": Method(
        2,
        change(
            operations.delete_index,
            lambda texts: Index(check_name(texts[0]), 0, texts[1]),
            lambda each: f"{each.url}: {each.pattern}" if each.pattern else each.url,
        ),
        ADMINISTER,
    ),
    "lrc_rli_info": Method(1, catalog.indexes, READ),
    "lrc_rli_list": Method(0, catalog.indexes, READ),
    "lrc_rli_get_part": Method(2, catalog.partitions, READ),
    "rli_get_lrc": Method(3, index.catalogs, READ_INDEX),
    "rli_get_lrc_wc": Method(3, index.matching, READ_INDEX),
    "rli_get_lrc_bulk": Method(0, index.catalogs_bulk, READ_INDEX, 1),
    "rli_exists": Method(2, index.exists, READ_INDEX),
    "rli_exists_bulk": Method(1, index.exists_bulk, READ_INDEX, 1),
    "rli_mapping_exists": Method(2, index.mapping_exists, READ_INDEX),
    "rli_sender_list": Method(0, index.senders, READ_INDEX),
    "rli_rli_list": Method(0, service.parents, READ_INDEX),
    "stats": Method(0, service.statistics, STATISTICS),
    "get_configuration": Method(1, service.configuration, ADMINISTER),
    "set_configuration": Method(2, service.configure, ADMINISTER),
    "admin": Method(1, service.administer, ADMINISTER),
}
