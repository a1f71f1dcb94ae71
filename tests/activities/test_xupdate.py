"""XUpdate of one document: what it makes of it, and what it refuses."""

import pytest

from dai.perform.xml import worker
from dai.perform.xml.xupdate import XUpdate
from tests.activities.xupdates import ITEM, instructions


@pytest.mark.parametrize(
    ("modifications", "count", "document"),
    [
        (
            '<xu:insert-before select="/a/b[1]"><n/></xu:insert-before>',
            1,
            '<a id="1">x<n/><b>1</b>y<b c="2">2</b>z<!--k--></a>',
        ),
        (
            '<xu:insert-before select="/a/b">t</xu:insert-before>',
            2,
            '<a id="1">xt<b>1</b>yt<b c="2">2</b>z<!--k--></a>',
        ),
        (
            '<xu:insert-after select="/a/b[1]"><n/>t</xu:insert-after>',
            1,
            '<a id="1">x<b>1</b><n/>ty<b c="2">2</b>z<!--k--></a>',
        ),
        ('<xu:insert-before select="/a"><xu:comment>c</xu:comment></xu:insert-before>', 1, f"<!--c-->{ITEM}"),
        ('<xu:insert-after select="/a"><xu:comment>c</xu:comment></xu:insert-after>', 1, f"{ITEM}<!--c-->"),
        ('<xu:append select="/a"><n>1</n></xu:append>', 1, '<a id="1">x<b>1</b>y<b c="2">2</b>z<!--k--><n>1</n></a>'),
        ('<xu:append select="/a" child="1"><n/></xu:append>', 1, '<a id="1">x<n/><b>1</b>y<b c="2">2</b>z<!--k--></a>'),
        (
            '<xu:append select="/a" child="last()"><n/></xu:append>',
            1,
            '<a id="1">x<b>1</b>y<b c="2">2</b>z<!--k--><n/></a>',
        ),
        (
            '<xu:append select="/a/b"><xu:attribute name="d">4</xu:attribute></xu:append>',
            2,
            '<a id="1">x<b d="4">1</b>y<b c="2" d="4">2</b>z<!--k--></a>',
        ),
        (
            (
                '<xu:append select="/a/b[1]"><xu:element name="e"><xu:attribute name="f">5</xu:attribute>'
                '<xu:text> </xu:text><g h="6"/></xu:element>'
                '<xu:processing-instruction name="p">q</xu:processing-instruction></xu:append>'
            ),
            1,
            '<a id="1">x<b>1<e f="5"> <g h="6"/></e><?p q?></b>y<b c="2">2</b>z<!--k--></a>',
        ),
        ('<xu:update select="/a/b[2]">9</xu:update>', 1, '<a id="1">x<b>1</b>y<b c="2">9</b>z<!--k--></a>'),
        ('<xu:update select="/a"><n/></xu:update>', 1, '<a id="1"><n/></a>'),
        ('<xu:update select="/a/@id | /a/b/@c">7</xu:update>', 2, '<a id="7">x<b>1</b>y<b c="7">2</b>z<!--k--></a>'),
        ('<xu:update select="/a/text()[2]">Y</xu:update>', 1, '<a id="1">x<b>1</b>Y<b c="2">2</b>z<!--k--></a>'),
        ('<xu:update select="//comment()">K</xu:update>', 1, '<a id="1">x<b>1</b>y<b c="2">2</b>z<!--K--></a>'),
        ('<xu:remove select="/a/b[1]"/>', 1, '<a id="1">xy<b c="2">2</b>z<!--k--></a>'),
        ('<xu:remove select="/a/b | //@c | //comment()"/>', 4, '<a id="1">xyz</a>'),
        ('<xu:remove select="/a/text()"/>', 3, '<a id="1"><b>1</b><b c="2">2</b><!--k--></a>'),
        ('<xu:rename select="/a/b">n</xu:rename>', 2, '<a id="1">x<n>1</n>y<n c="2">2</n>z<!--k--></a>'),
        ('<xu:rename select="//@c">d</xu:rename>', 1, '<a id="1">x<b>1</b>y<b d="2">2</b>z<!--k--></a>'),
        (
            (
                '<xu:variable name="v" select="/a/b[2]"/><xu:remove select="$v"/>'
                '<xu:insert-before select="/a/b[1]"><xu:value-of select="$v"/></xu:insert-before>'
            ),
            2,
            '<a id="1">x<b c="2">2</b><b>1</b>yz<!--k--></a>',
        ),
        (
            (
                '<xu:variable name="v" select="//@c"/><xu:variable name="w" select="/a/text()"/>'
                '<xu:append select="/a"><n><xu:value-of select="$v"/><xu:value-of select="$v + 1"/></n></xu:append>'
                '<xu:update select="$v">5</xu:update><xu:remove select="$w"/>'
            ),
            5,
            '<a id="1"><b>1</b><b c="5">2</b><!--k--><n>23</n></a>',
        ),
        (
            '<xu:update select="//b[1]"><xu:value-of select="count(//b)"/>:<xu:value-of select="/a/@id"/></xu:update>',
            1,
            '<a id="1">x<b>2:1</b>y<b c="2">2</b>z<!--k--></a>',
        ),
        (
            (
                '<xu:if test="/a/@id = 1"><xu:remove select="//comment()"/></xu:if>'
                '<xu:if test="/a/@id = 2"><xu:remove select="//b"/></xu:if>'
            ),
            1,
            '<a id="1">x<b>1</b>y<b c="2">2</b>z</a>',
        ),
        ('<xu:update select="/a/b[1]"><xu:if test="true()">yes</xu:if></xu:update>', 1, ITEM.replace(">1<", ">yes<")),
        (
            '<xu:append select="/a"><c:n xmlns:c="urn:c"/></xu:append>',
            1,
            ITEM.replace("</a>", '<c:n xmlns:c="urn:c"/></a>'),
        ),
        ('<xu:remove select="/x"/><xu:value-of select="/a"/>', 0, ITEM),
    ],
)
def test_xupdate(modifications: str, count: int, document: str) -> None:
    frames = list(XUpdate(instructions(modifications), {}).run(ITEM.encode()))
    expected = [(worker.RESULT, str(count)), (worker.DOCUMENT, document.replace("'", '"'))] if count else []
    assert [(kind, data.decode()) for kind, data in frames] == expected


@pytest.mark.parametrize(
    ("modifications", "says"),
    [
        ('<xu:remove select="/a["/>', "Invalid expression"),
        ("<xu:remove/>", "remove lacks the attribute 'select'"),
        ('<xu:replace select="/a"/>', "not an instruction of XUpdate. The instructions: insert-before"),
        ("<remove/>", "not an instruction of XUpdate"),
        ('<xu:append select="/a"><xu:remove select="/a"/></xu:append>', "is not allowed in append"),
        ('<xu:append select="/a"><xu:value-of/></xu:append>', "value-of lacks the attribute 'select'"),
        ('<xu:remove select="$v"/>', "Undefined variable"),
        ('<xu:remove select="/a"/>', "root element.*cannot be removed"),
        ('<xu:remove select="count(/a)"/>', "selects no nodes"),
        ('<xu:insert-before select="/a"><n/></xu:insert-before>', "only comments"),
        ('<xu:insert-before select="//@c">x</xu:insert-before>', "selects an attribute"),
        ('<xu:append select="//comment()">x</xu:append>', "must select elements"),
        ('<xu:append select="/a" child="0"><n/></xu:append>', "neither a number"),
        ('<xu:rename select="/a">1 2</xu:rename>', "Invalid"),
        ('<xu:rename select="/a">c:d</xu:rename>', "prefix of 'c:d' is not declared"),
        ('<xu:append select="/a"><xu:element name="&lt;"/></xu:append>', "Invalid"),
        ('<xu:append select="/a"><xu:comment>--</xu:comment></xu:append>', "Comment"),
        ('<xu:update select="//comment()">--</xu:update>', "hyphen"),
        ('<xu:append select="/a"><xu:element/></xu:append>', "element lacks the attribute 'name'"),
    ],
)
def test_xupdate_refuses(modifications: str, says: str) -> None:
    with pytest.raises(worker.RefusedError, match=rf"(?s){says}"):
        list(XUpdate(instructions(modifications), {}).run(ITEM.encode()))
