"""Label names from the XML file that Mulan puts beside a data set."""

import xml.etree.ElementTree as ET
from pathlib import Path

from mpvae.data.files import one_line, read_bytes
from mpvae.errors import DataError

MAX_XML_BYTES = 16 * 1024**2
"""Largest label file read."""


def label_names_of_xml(path: Path) -> list[str]:
    """Names of all ``label`` elements, in the order of the file.

    Raises
    ------
    DataError
        If the file is too large, is not XML, lists no label, or declares a document type:
        entities can be made to unpack without end, and label files need none.
    """
    file = path.name
    try:
        text = read_bytes(path, limit=MAX_XML_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    if "<!DOCTYPE" in text.upper() or "<!ENTITY" in text.upper():
        raise DataError(f"{file} declares a document type or entities; remove the declaration")
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        raise DataError(f"{file} is not XML: {one_line(error)}; repair the file") from None
    names = [
        element.get("name", "")
        for element in root.iter()
        if element.tag.rpartition("}")[2] == "label"
    ]
    if not names or "" in names:
        raise DataError(f'{file} lists no label names; write <label name="..."/> for each')
    return names
