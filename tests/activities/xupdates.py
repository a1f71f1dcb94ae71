"""A document to be changed, and instructions for it."""

XUPDATE = 'xmlns:xu="http://www.xmldb.org/xupdate"'
ITEM = "<a id='1'>x<b>1</b>y<b c='2'>2</b>z<!--k--></a>"


def instructions(modifications: str) -> str:
    return f'<xu:modifications version="1.0" {XUPDATE}>{modifications}</xu:modifications>'
