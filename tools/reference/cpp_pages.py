"""A page for each header, class and function of include/heddle, from Doxygen's XML."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from member_comments import BEHIND
from plain_text import rst

DOXYFILE = """
INPUT = {headers}
STRIP_FROM_PATH = {include}
FILE_PATTERNS = *.h
OUTPUT_DIRECTORY = {out}
INPUT_FILTER = "{python} {filter}"
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = HEDDLE_API=
AUTOLINK_SUPPORT = NO
QUIET = YES
WARNINGS = NO
"""
INNER = ("heddle::engine", "heddle::expr", "heddle::base", "std")


def run_doxygen(headers, out):
    out.mkdir(parents=True)
    (out / "Doxyfile").write_text(DOXYFILE.format(
        headers=headers, include=headers.parent, out=out, python=sys.executable,
        filter=Path(__file__).parent / "member_comments.py"), encoding="utf-8")
    subprocess.run(["doxygen", str(out / "Doxyfile")], check=True)
    return out / "xml"


def _text(node):
    """A description as plain text: paragraphs, bullets, code in backticks."""
    if node is None:
        return ""
    lines = []
    for part in node:
        if part.tag == "para":
            lines += _paragraph(part)
    return "\n\n".join(line for line in lines if line.strip())


def _paragraph(para):
    pieces, text = [], para.text or ""
    for part in para:
        if part.tag == "itemizedlist":
            items = ["- " + " ".join(" ".join(_paragraph(one)) for one in item.findall("para"))
                     for item in part.findall("listitem")]
            pieces += [text, *items]
            text = ""
        elif part.tag in ("computeroutput", "verbatim"):
            text += f"`{''.join(part.itertext())}`"
        elif part.tag == "simplesect":
            pieces += [text, _text(part)]
            text = ""
        else:
            text += "".join(part.itertext())
        text += part.tail or ""
    return [*pieces, text]


def _description(member):
    return "\n\n".join(filter(None, (_text(member.find("briefdescription")), _text(member.find("detaileddescription")))))


def _flat(node):
    return re.sub(r"\s+", " ", "".join(node.itertext())).strip() if node is not None else ""


def _template(member):
    parameters = member.find("templateparamlist")
    if parameters is None:
        return ""
    shown = []
    for one in parameters.findall("param"):
        name = one.findtext("declname") or one.findtext("defname") or ""
        shown.append(" ".join(filter(None, (_flat(one.find("type")), name))))
    return f"template <{', '.join(shown)}> "


def _declaration(member):
    kind, name, of = member.get("kind"), member.findtext("name"), _flat(member.find("type"))
    if kind == "function":
        static = "static " if member.get("static") == "yes" else ""
        explicit = "explicit " if member.get("explicit") == "yes" else ""
        arguments = re.sub(r"=\s*(default|delete)$", r"= \1", member.findtext("argsstring") or "()")
        return f"{_template(member)}{static}{explicit}{of} {name}{arguments}".replace("  ", " ").strip()
    if kind == "typedef":
        return f"{name} = {of}" if member.findtext("definition", "").startswith("using") else f"{of} {name}"
    initial = _flat(member.find("initializer"))
    shown = f" {initial}" if initial.startswith("=") and kind == "variable" else ""
    return f"{of} {name}{member.findtext('argsstring') or ''}{shown}"


def _enum(member, indent):
    scope = "enum-class" if member.get("strong") == "yes" else "enum"
    name = member.findtext("name")
    lines = [f"{indent}.. cpp:{scope}:: {name}", "", rst(_description(member), (), indent + "   ")] if name else [
        rst(_description(member), (), indent)]
    for value in member.findall("enumvalue"):
        shown = f"{value.findtext('name')} {_flat(value.find('initializer'))}".rstrip()
        lines += [f"{indent}   .. cpp:enumerator:: {shown}", "", rst(_description(value), (), indent + "      ")]
    return "\n".join(lines)


def _member(member, indent, text):
    kind = member.get("kind")
    if kind == "enum":
        return _enum(member, indent)
    directive = {"function": "function", "variable": "var", "typedef": "type", "friend": "function"}[kind]
    return f"{indent}.. cpp:{directive}:: {_declaration(member)}\n\n" + rst(text, (), indent + "   ")


def _shared_descriptions(members, headers):
    """Each member's text. One without has that of the member above it, if no empty line stands between them and the
    text does not stand behind that member."""
    texts = {}
    for member in members:
        texts[member.get("id")] = _description(member)
    placed = sorted(members, key=lambda one: (one.find("location").get("file"), int(one.find("location").get("line"))))
    for above, member in zip(placed, placed[1:]):
        if texts[member.get("id")]:
            continue
        where, before = member.find("location"), above.find("location")
        if where.get("file") != before.get("file"):
            continue
        source = (headers.parent / where.get("file")).read_text(encoding="utf-8").split("\n")
        between = source[int(before.get("line")) - 1:int(where.get("line"))]
        if all(line.strip() for line in between) and not BEHIND.match(between[0]):
            texts[member.get("id")] = texts[above.get("id")]
    return texts


def leading_comment(header):
    """What a header says before its first line of code."""
    lines = []
    for line in header.read_text(encoding="utf-8").split("\n"):
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").removeprefix(" "))
    return "\n".join(lines)


def _left_out(member):
    """Macros, and what repeats another declaration: C's names of structs, instances of templates."""
    return (member.get("kind") == "define" or member.get("prot") == "private" or
            member.findtext("definition", "").startswith("typedef struct") or
            _flat(member.find("type")).startswith("template"))


class Reader:
    """The compounds of Doxygen's XML, by header."""

    def __init__(self, xml, headers):
        self.headers = headers
        self.functions, self.others, self.classes = {}, {}, {}
        compounds = [ElementTree.parse(path).getroot().find("compounddef") for path in sorted(xml.glob("*.xml"))
                     if path.name != "index.xml" and path.name != "Doxyfile.xml"]
        plain = [one for one in compounds if one.get("kind") in ("namespace", "file")]
        seen, members = set(), []
        for compound in plain:
            scope = compound.findtext("compoundname") if compound.get("kind") == "namespace" else ""
            if scope in INNER:
                continue
            for member in compound.iter("memberdef"):
                if member.get("id") not in seen and not _left_out(member):
                    seen.add(member.get("id"))
                    members.append((scope, member))
        self.texts = _shared_descriptions([member for _, member in members], headers)
        for scope, member in members:
            header = member.find("location").get("file").removeprefix("heddle/")
            into = self.functions if member.get("kind") == "function" else self.others
            into.setdefault(header, {}).setdefault((scope, member.findtext("name")), []).append(member)
        for compound in compounds:
            name = compound.findtext("compoundname")
            is_inner = name.startswith(INNER) or name.endswith("::State")
            if compound.get("kind") in ("class", "struct") and not is_inner:
                header = compound.find("location").get("file").removeprefix("heddle/")
                self.classes.setdefault(header, []).append(compound)

    def class_text(self, compound):
        members = [one for section in compound.findall("sectiondef") for one in section.findall("memberdef")
                   if one.get("prot") == "public" and section.get("kind") != "friend"]
        texts = _shared_descriptions(members, self.headers)
        name = compound.findtext("compoundname")
        lines = [f".. cpp:{compound.get('kind')}:: {_template(compound)}{name}", "",
                 rst(_description(compound), (), "   ")]
        members.sort(key=lambda one: int(one.find("location").get("line")))
        return "\n".join(lines + [_member(one, "   ", texts[one.get("id")]) for one in members])


def _titled(title):
    return [title, "=" * len(title), ""]


def _file_name(title):
    words = {"+": "plus", "-": "minus", "*": "times", "/": "divide", "%": "modulo", "<": "less", ">": "greater",
             "=": "equal", "!": "not", "&": "and", "|": "or", "^": "xor", "~": "complement", ":": "."}
    return re.sub(r"\.\.+", ".", "".join(words.get(letter, letter) for letter in title.replace("::", ".")))


def write_pages(headers, xml, out):
    """Writes OUT/cpp/*.rst. Gives the pages of headers, for the index."""
    reader = Reader(xml, headers)
    folder = out / "cpp"
    folder.mkdir(parents=True)
    index = []
    for header in sorted(headers.glob("*.h")):
        name, listed = header.name, []
        for compound in sorted(reader.classes.get(name, []), key=lambda one: one.findtext("compoundname")):
            title = compound.findtext("compoundname")
            listed.append((title, _file_name(title)))
            (folder / f"{_file_name(title)}.rst").write_text(
                "\n".join([*_titled(title), f"``#include <heddle/{name}>``", "", reader.class_text(compound)]),
                encoding="utf-8")
        for (scope, function), versions in sorted(reader.functions.get(name, {}).items()):
            title = f"{scope}::{function}" if scope else function
            file = _file_name(f"{name.removesuffix('.h')}.{title}")
            lines = [*_titled(title), f"``#include <heddle/{name}>``", ""]
            lines += [f".. cpp:namespace:: {scope}", ""] if scope else []
            lines += [_member(one, "", reader.texts[one.get("id")]) for one in versions]
            listed.append((title, file))
            (folder / f"{file}.rst").write_text("\n".join(lines), encoding="utf-8")
        lines = [*_titled(f"heddle/{name}"), rst(leading_comment(header))]
        for (scope, _), others in sorted(reader.others.get(name, {}).items()):
            lines += [f".. cpp:namespace:: {scope or 'NULL'}", ""]
            lines += [_member(one, "", reader.texts[one.get("id")]) for one in others]
        lines += ["", ".. toctree::", "   :maxdepth: 1", "", *(f"   {title} <{file}>" for title, file in listed), ""]
        (folder / f"{name}.rst").write_text("\n".join(lines), encoding="utf-8")
        first = " ".join(leading_comment(header).partition("\n\n")[0].split())
        index.append((f"heddle/{name}", f"cpp/{name}", first.partition(". ")[0].rstrip(".:")))
    return index
