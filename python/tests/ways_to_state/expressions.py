"""By expressions over an object whose special methods find a number, and over a dict."""

import copy
import functools
import json
import operator

from .registry import FREE, WAYS


class Special:
    number = 1.0

    def __call__(self):
        return Special.number

    def __float__(self):
        return Special.number

    def __getitem__(self, index):
        return Special.number

    def __len__(self):
        return int(2 * Special.number)

    def __iter__(self):
        yield Special.number

    def __contains__(self, value):
        return Special.number > 1

    def __index__(self):
        return int(2 * Special.number)

    def __bool__(self):
        return Special.number > 1

    def __mul__(self, x):
        return x * Special.number

    def __rmul__(self, x):
        return x * Special.number

    def __eq__(self, other):
        return Special.number > 1

    def __format__(self, spec):
        return str(Special.number)

    def __enter__(self):
        return Special.number

    def __exit__(self, *error):
        pass

    @staticmethod
    def of_none():
        return Special.number

    @classmethod
    def of_class(cls):
        return cls.number


OF_OBJECT = """
owner() | float(owner) | owner[0] | len(owner) / 2 | next(iter(owner)) | 2.0 if 3 in owner else 3.0
range(99)[owner] / 2 | 2.0 if owner else 3.0 | 1.0 * owner | float(f'{owner}') | owner.of_none() | owner.of_class()
owner.number | kind.number | kind.of_none() | kind.of_class() | owner.__call__() | type(owner).number
owner.__class__.number | sum(owner) | max(owner) | [*owner][0] | (lambda *found: found[0])(*owner)
2.0 if owner == 3 else 3.0 | (owner if h is not None else owner).number | [owner][0].number
(lambda found: found.number)(owner) | (lambda: owner.number)() | (lambda: (lambda: owner.number)())()
[one.number for one in [owner]][0] | sum(one.number for one in (owner,)) | (found := owner).number
copy.copy(owner).number | object.__getattribute__(owner, 'number') | f'{owner.number}' and owner.number
"""
OF_DICT = """
held.get('number', 7) | held.setdefault('number', 7) | dict(held)['number'] | {**held}['number'] | max(held.values())
(lambda number: number)(**held) | functools.reduce(lambda x, y: x + y, held.values()) | find(held) | get('number')
operator.itemgetter('number')(held) | operator.getitem(held, 'number') | json.loads(json.dumps(held))['number']
float('{0[number]}'.format(held)) | float('%(number)s' % held) | 2.0 if held == {'number': 2.0} else 3.0
tuple(map(float, held.values()))[0] | 2.0 if 2.0 in held.values() else 3.0 | sorted(held.values(), key=float)[0]
"""
STATEMENTS = {
    "with": "with owner as found:\n        return score * found",
    "match of a class": "match owner:\n        case kind(number=2.0): return score * 2\n"
                        "        case kind(number=found): return score * found",
    "match of a dict": "match held:\n        case {'number': 2.0}: return score * 2\n"
                       "        case {'number': found}: return score * found",
    "class inside": "class Inside:\n        number = held['number']\n    return score * Inside.number",
    "function inside": "def inside(x=held['number']): return x\n    return score * inside()",
    "annotation": "def inside(x: held['number']): return inside.__annotations__['x']\n    return score * inside(1)",
    "generator inside": "def inside():\n        yield from (held['number'],)\n    return score * sum(inside())",
    "import": "from ways_to_state.expressions import Special as found\n    return score * found.number",
}


def add(name, code):
    held = {"number": 1.0}
    scope = {"owner": Special(), "kind": Special, "held": held, "find": operator.itemgetter("number"), "get": held.get,
             "copy": copy, "functools": functools, "json": json, "operator": operator}
    exec(f"def mod(score, b, h, q_idx, kv_idx):\n    {code}\n", scope)

    def put(x):
        Special.number = held["number"] = x

    FREE.add(name)
    WAYS[name] = lambda face: (scope["mod"], put)


for text in (one.strip() for lines in (OF_OBJECT, OF_DICT) for line in lines.split("\n") for one in line.split(" | ")):
    if text:
        add(text, f"return score * ({text})")
for name, code in STATEMENTS.items():
    add(name, code)
