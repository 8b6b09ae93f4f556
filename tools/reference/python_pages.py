"""A page for each public name of the Python package, from its source: nothing is imported, torch neither."""

import griffe

from plain_text import rst

MODULES = {
    "heddle": "Attention, block masks, plans, gradients and files of NumPy arrays",
    "heddle.mods": "Ready-made mods",
    "heddle.torch": "flex_attention, scaled_dot_product_attention and their block masks",
    "heddle.torch.serving": "Attention of serving engines",
    "heddle.torch.flashinfer": "FlashInfer's wrappers and functions",
    "heddle.hf": "transformers",
    "heddle.viz": "Pictures",
}


def target(member):
    """What a name stands for; None if it is torch's."""
    try:
        return member.final_target if member.is_alias else member
    except griffe.AliasResolutionError:
        return None


def public_names(module):
    """What `__all__` lists, but for modules, which have pages of their own."""
    if module.exports is None:
        raise SystemExit(f"{module.path} has no __all__, which says what its reference has")
    things = {str(name): target(module.members[str(name)]) for name in module.exports}
    return [name for name, thing in things.items() if thing is None or not thing.is_module]


def _trailing_comment(attribute):
    """What stands behind an attribute's line, and on the lines of comments below."""
    lines = attribute.parent.parent.source.split("\n") if attribute.lineno else []
    offset = (attribute.lineno or 0) - (attribute.parent.parent.lineno or 1)
    if not 0 <= offset < len(lines):
        return ""
    return lines[offset].partition("  # ")[2].strip()


def _options(annotation):
    """The class whose keys are keywords: `**options: Unpack[Options]`."""
    text = str(annotation)
    return text.removeprefix("Unpack[").removesuffix("]") if text.startswith("Unpack[") else None


def _keys(package, name):
    """The keys of a TypedDict of _options, its bases' first."""
    of = package.modules["_options"].classes[name]
    found = {}
    for base in of.bases:
        if str(base) in package.modules["_options"].classes:
            found.update(_keys(package, str(base)))
    found.update({key: str(value.annotation) for key, value in of.attributes.items()})
    return found


def signature(package, function, name, skip_first=False):
    """As Sphinx's domain reads it: (q, k, *, scale: float | None = None) -> Tensor."""
    parts, star = [], False
    kinds = griffe.ParameterKind
    for index, one in enumerate(function.parameters):
        if skip_first and index == 0:
            continue
        options = _options(one.annotation) if one.kind is kinds.var_keyword else None
        if options:
            parts += [] if star else ["*"]
            parts += [f"{key}: {annotation} = None" for key, annotation in _keys(package, options).items()]
            continue
        if one.kind is kinds.keyword_only and not star:
            parts.append("*")
            star = True
        text = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(one.kind, "") + one.name
        star = star or one.kind is kinds.var_positional
        if one.annotation is not None:
            text += f": {one.annotation}"
        if one.default is not None and one.kind not in (kinds.var_positional, kinds.var_keyword):
            text += f" = {one.default}" if one.annotation is not None else f"={one.default}"
        parts.append(text)
        following = list(function.parameters)[index + 1:index + 2]
        if one.kind is kinds.positional_only and (not following or following[0].kind is not kinds.positional_only):
            parts.append("/")
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return f"{name}({', '.join(parts)}){returns}"


def _documentation(thing):
    return thing.docstring.value if thing.docstring else ""


def _callable(package, function, directive, name, names, indent="", skip_first=False):
    versions = function.overloads or [function] if hasattr(function, "overloads") else [function]
    lead = f"{indent}.. py:{directive}:: "
    lines = [lead + signature(package, versions[0], name, skip_first)]
    lines += [" " * len(lead) + signature(package, one, name, skip_first) for one in versions[1:]]
    for label in ("staticmethod", "classmethod"):
        if label in function.labels:
            lines.append(f"{indent}   :{label}:")
    texts = [_documentation(function)] if function.docstring else [_documentation(one) for one in versions]
    return "\n".join([*lines, "", *(rst(text, names, indent + "   ") for text in texts if text)])


def _members(of):
    """Public members in the source's order, those of bases in the package last."""
    members = {name: one for name, one in of.members.items() if not name.startswith("_")}
    for base in of.mro():
        members |= {name: one for name, one in base.members.items() if not name.startswith("_") and name not in members}
    return members


def _class(package, of, path, names):
    initial = of.members.get("__init__")
    shown = path.rpartition(".")[2]
    head = signature(package, initial, shown, True).partition(" -> ")[0] if initial is not None else shown
    body = [f".. py:class:: {head}", "", rst(_documentation(of), names, "   ")]
    if initial is not None and initial.docstring:
        body.append(rst(_documentation(initial), names, "   "))
    for name, one in _members(of).items():
        if one.is_function:
            body.append(_callable(package, one, "method", name, names, "   ", "staticmethod" not in one.labels))
        elif one.is_attribute:
            directive = "property" if "property" in one.labels else "attribute"
            body.append(f"   .. py:{directive}:: {name}")
            if one.annotation is not None:
                body.append(f"      :type: {one.annotation}")
            body += ["", rst(_documentation(one) or _trailing_comment(one), names, "      ")]
    return "\n".join(body)


def page(package, module, name, names):
    """The page of one public name."""
    path = f"{module.path}.{name}"
    lines = [path, "=" * len(path), "", f".. py:currentmodule:: {module.path}", ""]
    thing = target(module.members[name])
    if thing is None:
        own = module.members[name].target_path
        return "\n".join([*lines, f".. py:class:: {name}", "", f"   torch's own: ``{own}``.", ""])
    if not thing.docstring:
        raise SystemExit(f"{path} has no docstring")
    if thing.is_class:
        lines.append(_class(package, thing, path, names))
    elif thing.is_function:
        lines.append(_callable(package, thing, "function", name, names))
    else:
        lines += [f".. py:data:: {name}", "", rst(_documentation(thing), names, "   ")]
    return "\n".join(lines)


def _first_sentence(thing):
    text = " ".join(_documentation(thing).partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".:") + "."


def write_pages(package_folder, out):
    """Writes OUT/python/*.rst. Gives the pages of modules, for the index, and all public names."""
    package = griffe.load("heddle", search_paths=[package_folder], submodules=True)
    modules = {path: package.modules_collection[path] for path in MODULES}
    names = {f"{path}.{name}" for path, module in modules.items() for name in public_names(module)} | set(MODULES)
    folder = out / "python"
    folder.mkdir(parents=True)
    for path, module in modules.items():
        lines = [path, "=" * len(path), "", f".. py:module:: {path}", "", rst(_documentation(module), names)]
        rows, listed = [], []
        for name in sorted(public_names(module), key=str.lower):
            (folder / f"{path}.{name}.rst").write_text(page(package, module, name, names), encoding="utf-8")
            thing = target(module.members[name])
            what = "torch's own." if thing is None else _first_sentence(thing)
            rows += [f"   * - :py:obj:`{name} <{path}.{name}>`", f"     - {rst(what, names).strip()}"]
            listed.append(f"   {name} <{path}.{name}>")
        lines += [".. list-table::", "   :widths: 30 70", "", *rows, "", ".. toctree::", "   :hidden:", "", *listed, ""]
        (folder / f"{path}.rst").write_text("\n".join(lines), encoding="utf-8")
    return [(path, f"python/{path}", what) for path, what in MODULES.items()], names
