"""The XUpdate language (XML:DB working draft of 2000-09-14): changes of documents, written as XML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from lxml import etree

from dai.perform.xml.worker import DOCUMENT, RESULT, RefusedError, parsed, parser
from dai.perform.xml.xpath import EXSLT, refusal, text_of

NAMESPACE = "http://www.xmldb.org/xupdate"
_INSTRUCTIONS = {
    "insert-before": ("select",),
    "insert-after": ("select",),
    "append": ("select",),
    "update": ("select",),
    "remove": ("select",),
    "rename": ("select",),
    "variable": ("name", "select"),
    "value-of": ("select",),
    "if": ("test",),
}
"""Each with the attributes that it needs."""
_CONTENT = ("element", "attribute", "text", "comment", "processing-instruction", "value-of", "if")


@dataclass(frozen=True, slots=True)
class Attribute:
    """One to set on an element."""

    name: str
    value: str


Content = Sequence[str | Attribute | etree._Element]


class XUpdate:
    """Gives the number of changed nodes as a result, then the document; nothing where none changed.

    Nodes are selected before any of them is changed. Later instructions see what earlier ones have done.
    """

    def __init__(self, expression: str, namespaces: dict[str, str]) -> None:
        self._namespaces = {**EXSLT, **namespaces}
        self._parser = parser()
        self._paths: dict[tuple[etree._Element, str], etree.XPath] = {}
        root = parsed(expression.encode(), self._parser, "The modifications are").getroot()
        if root.tag != f"{{{NAMESPACE}}}modifications":
            raise RefusedError(f"The root element is {root.tag!r}, not modifications in {NAMESPACE}.")
        self._instructions = self._checked(root)

    def run(self, document: bytes) -> Iterator[tuple[int, bytes]]:
        tree = parsed(document, self._parser)
        try:
            count = self._apply(self._instructions, tree, {})
        except (TypeError, ValueError) as error:  # a name or a text that XML cannot have
            raise RefusedError(f"{error}.") from None
        if count:
            changed = etree.tostring(tree, encoding="UTF-8", xml_declaration=False)
            parsed(changed, self._parser, "The changed document would be")
            yield RESULT, str(count).encode()
            yield DOCUMENT, changed

    def _checked(self, node: etree._Element) -> list[etree._Element]:
        """The instructions in an element, after a look at each."""
        instructions = list(node.iterchildren(etree.Element))
        for each in instructions:
            name = _instruction(each)
            if name not in _INSTRUCTIONS:
                raise RefusedError(
                    f"{each.tag!r} is not an instruction of XUpdate. The instructions: {', '.join(_INSTRUCTIONS)}."
                )
            for attribute in _INSTRUCTIONS[name]:
                if each.get(attribute) is None:
                    raise RefusedError(f"{name} lacks the attribute {attribute!r}.")
            if name == "if":
                self._checked(each)
            for inner in each.iter(etree.Element):
                if inner is not each and name != "if" and _instruction(inner) not in (None, *_CONTENT):
                    raise RefusedError(f"{inner.tag!r} is not allowed in {name}.")
                for attribute in {"select", "test"} & set(inner.attrib) if _instruction(inner) else ():
                    self._path(inner, str(attribute))
        return instructions

    def _path(self, node: etree._Element, attribute: str) -> etree.XPath:
        key = node, attribute
        if key not in self._paths:
            text = node.get(attribute)
            if text is None:
                raise RefusedError(f"{_instruction(node)} lacks the attribute {attribute!r}.")
            prefixes = {prefix: uri for prefix, uri in node.nsmap.items() if prefix is not None}
            try:
                self._paths[key] = etree.XPath(text, namespaces={**self._namespaces, **prefixes})
            except etree.XPathError as error:
                raise RefusedError(f"{attribute}={text!r}: {error}.") from None
        return self._paths[key]

    def _value(self, node: etree._Element, attribute: str, tree: Any, variables: dict[str, Any]) -> Any:
        text = str(node.get(attribute)).strip()
        if text[:1] == "$" and text[1:] in variables:
            return variables[text[1:]]
        known = {name: _passed(value) for name, value in variables.items() if f"${name}" in text}
        try:
            return self._path(node, attribute)(tree, **known)
        except Exception as error:  # noqa: BLE001 - EXSLT's regular expressions raise what Python's do
            raise refusal(f"{attribute}={text!r}", error) from None

    def _apply(self, instructions: list[etree._Element], tree: Any, variables: dict[str, Any]) -> int:
        count = 0
        for each in instructions:
            name = _instruction(each)
            if name == "if":
                if self._value(each, "test", tree, variables):
                    count += self._apply(list(each.iterchildren(etree.Element)), tree, variables)
                continue
            value = self._value(each, "select", tree, variables)
            if name == "variable":
                variables[str(each.get("name"))] = value
            elif name != "value-of":  # it stands for itself where nothing takes it
                if not isinstance(value, list):
                    raise RefusedError(f"select={each.get('select')!r} selects no nodes.")
                for node in value:
                    self._change(str(name), each, node, self._content(each, tree, variables))
                count += len(value)
        return count

    def _content(self, template: etree._Element, tree: Any, variables: dict[str, Any]) -> list[Any]:
        """What an instruction or a literal element holds. White space alone is content only in ``text``."""
        items: list[Any] = [template.text or ""]
        for node in template.iterchildren():
            if isinstance(node.tag, str):
                items.extend(self._built(node, tree, variables))
            items.append(node.tail or "")
        return [each for each in items if not isinstance(each, str) or each.strip() or isinstance(each, _Text)]

    def _built(self, node: etree._Element, tree: Any, variables: dict[str, Any]) -> list[Any]:
        """What an element of a template stands for."""
        name = _instruction(node)
        if name == "text":
            return [_Text("".join(str(each) for each in node.itertext()))]
        if name == "value-of":
            value = self._value(node, "select", tree, variables)
            return [_copied(each) for each in value] if isinstance(value, list) else [_Text(text_of(value))]
        if name == "if":
            return self._content(node, tree, variables) if self._value(node, "test", tree, variables) else []
        content = self._content(node, tree, variables)
        if name == "attribute":
            return [Attribute(_qualified(node, _name(node), False), _text(content))]
        if name == "comment":
            return [etree.Comment(_text(content))]
        if name == "processing-instruction":
            return [etree.ProcessingInstruction(_name(node), _text(content))]
        if name == "element":
            element = etree.Element(_qualified(node, _name(node), True))
        else:
            attributes: Any = dict(node.attrib)
            names: Any = {prefix: uri for prefix, uri in node.nsmap.items() if uri != NAMESPACE}
            element = etree.Element(node.tag, attributes, names)
        _put(element, 0, content)
        return [element]

    def _change(self, name: str, instruction: etree._Element, node: Any, content: Content) -> None:
        if isinstance(node, tuple):
            raise RefusedError("A namespace cannot be changed.")
        if isinstance(node, str):
            _change_text(name, instruction, node, content)
        elif name in ("insert-before", "insert-after"):
            _insert(node, content, after=name == "insert-after")
        elif name == "append":
            if not isinstance(node.tag, str):
                raise RefusedError("append must select elements.")
            _put(node, _place(instruction, node), content)
        elif name == "update":
            if isinstance(node.tag, str):
                del node[:]
                node.text = None
                _put(node, 0, content)
            else:
                node.text = _text(content)
        elif name == "remove":
            _remove(node)
        else:
            node.tag = _qualified(instruction, _text(content).strip(), True, node)


class _Text(str):
    """Content also where it is white space."""

    __slots__ = ()


def _passed(value: Any) -> Any:
    """A variable as lxml takes it into an expression: no list of attributes or texts, but the first of them."""
    plain = isinstance(value, list) and not all(isinstance(each, etree._Element) for each in value)
    return text_of(value[0]) if plain else value


def _instruction(node: etree._Element) -> str | None:
    """The name of an element of XUpdate; None for any other."""
    name = etree.QName(node)
    return name.localname if name.namespace == NAMESPACE else None


def _name(node: etree._Element) -> str:
    name = node.get("name")
    if name is None:
        raise RefusedError(f"{_instruction(node)} lacks the attribute 'name'.")
    return name


def _qualified(node: etree._Element, name: str, is_element: bool, target: etree._Element | None = None) -> str:
    """A name as lxml has it; its prefix is one of the template."""
    prefix, colon, local = name.rpartition(":")
    uri = node.get("namespace") or node.nsmap.get(prefix if colon else (None if is_element else ""))
    if colon and uri is None:
        raise RefusedError(f"The prefix of {name!r} is not declared.")
    if target is not None and not isinstance(target.tag, str):
        raise RefusedError("Only elements and attributes can be renamed.")
    return str(etree.QName(uri, local).text)


def _copied(result: Any) -> Any:
    if not isinstance(result, etree._Element):
        return _Text(text_of(result))
    copy = deepcopy(result)
    copy.tail = None
    return copy


def _text(content: Content) -> str:
    if any(isinstance(each, Attribute) for each in content):
        raise RefusedError("An attribute is where only text is allowed.")
    return "".join(each if isinstance(each, str) else "".join(map(str, each.itertext())) for each in content)  # type: ignore[union-attr]


def _put(parent: etree._Element, index: int, content: Content, behind: str = "") -> None:
    """Content before the child number ``index``, then the text ``behind``."""
    for each in (*content, behind):
        if isinstance(each, Attribute):
            parent.set(each.name, each.value)
        elif isinstance(each, str):
            _put_text(parent, index, each)
        else:
            parent.insert(index, each)
            index += 1


def _put_text(parent: etree._Element, index: int, text: str) -> None:
    if index == 0:
        parent.text = (parent.text or "") + text or None
    else:
        before = parent[index - 1]
        before.tail = (before.tail or "") + text or None


def _place(instruction: etree._Element, parent: etree._Element) -> int:
    """Where ``child`` says: the number of the new child, from 1, or last()."""
    child = (instruction.get("child") or "last()").strip()
    if child == "last()":
        return len(parent)
    if not child.isdecimal() or int(child) < 1:
        raise RefusedError(f"child={child!r} is neither a number from 1 nor last().")
    return min(int(child) - 1, len(parent))


def _insert(node: etree._Element, content: Content, after: bool) -> None:
    if any(isinstance(each, Attribute) for each in content):
        raise RefusedError("An attribute can only be appended.")
    parent = node.getparent()
    if parent is not None:
        behind = ""
        if after:
            behind, node.tail = node.tail or "", None
        _put(parent, parent.index(node) + after, content, behind)
        return
    if any(isinstance(each, str) or isinstance(each.tag, str) for each in content):  # type: ignore[union-attr]
        raise RefusedError("Beside the root element only comments and processing instructions are allowed.")
    for each in reversed(content) if after else content:
        (node.addnext if after else node.addprevious)(each)  # type: ignore[arg-type]


def _remove(node: etree._Element) -> None:
    parent = node.getparent()
    if parent is None:
        raise RefusedError("The root element, and the nodes beside it, cannot be removed.")
    index, tail = parent.index(node), node.tail or ""
    node.tail = None
    parent.remove(node)
    _put_text(parent, index, tail)


def _change_text(name: str, instruction: etree._Element, node: Any, content: Content) -> None:
    """An attribute, or a text."""
    parent = node.getparent()
    if name in ("insert-before", "insert-after", "append") or (name == "rename" and not node.is_attribute):
        raise RefusedError(f"{name} selects {'an attribute' if node.is_attribute else 'a text'}.")
    if node.is_attribute:
        value = _text(content) if name == "update" else parent.attrib.pop(node.attrname)
        if name == "update":
            parent.set(node.attrname, value)
        elif name == "rename":
            parent.set(_qualified(instruction, _text(content).strip(), False), value)
    elif node.is_tail:
        parent.tail = _text(content) if name == "update" else None
    else:
        parent.text = _text(content) if name == "update" else None
