"""Evaluate the expressions of a script; calls of functions of the project are followed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from surestep.doctor.source.arguments import (
    bind_arguments,
    find_step_hooks,
    is_generator,
    is_manager,
)
from surestep.doctor.source.choices import choose_attribute, choose_item
from surestep.doctor.source.files import SourceFile
from surestep.doctor.source.operators import BUILTINS, OPERATORS, find_truth, is_none
from surestep.doctor.source.recorder import Recorder
from surestep.doctor.source.stored_items import StoredItems
from surestep.doctor.source.trace import Branch, SourceLoop
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Class,
    Collection,
    Constant,
    Definition,
    Either,
    Element,
    Function,
    Instance,
    Item,
    ModuleValue,
    Operation,
    Scope,
    Super,
    Symbol,
    Unknown,
    Value,
    join,
)
from surestep.doctor.source.wrapping import MOVES, WRAPPERS

MAX_DEPTH = 12  # of calls that are followed
MAX_RUNS = 12  # of one function
_RETURN_MODULE = MOVES | {"type", "apply", "compile"}  # of a module; of a tensor they may not
_SEVERAL = ("prepare", "setup", "setup_dataloaders")  # which return a tuple of what they are given
_TRANSPARENT = frozenset(("tqdm", "iter", "trange", "track", "list", "tuple"))


class ExpressionEvaluator:
    """Evaluates expressions; a subclass executes statements."""

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._frames: list[_Frame] = []
        self._managed: dict[ast.AST, Callable[[Value], None]] = {}  # bodies, by their managers
        self._reached: set[Definition] = set()
        self._runs: Counter[Definition] = Counter()
        self._functions: list[Function] = []
        self._hooks: list[Call] = []  # of `optimizer.register_step_post_hook`
        self._options: dict[tuple[Value, str], Value | None] = {}  # what was assigned to them
        self._items = StoredItems(self._recorder)
        self._file: SourceFile

    def _run(self, body: Sequence[ast.stmt], scope: Scope) -> bool:
        """Execute statements; return whether the end is reached."""
        raise NotImplementedError

    def _assign(
        self, target: ast.expr, value: Value, scope: Scope, statement: ast.stmt | None
    ) -> None:
        """Bind a target of an assignment, a loop or a `with`."""
        raise NotImplementedError

    def _bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Bind a target that is not a tuple."""
        raise NotImplementedError

    def _add(
        self,
        kind: str,
        node: ast.AST,
        value: Value,
        *,
        target: ast.expr | None = None,
        base: Value | None = None,
    ) -> None:
        self._recorder.add(kind, node, self._file, value, target=target, base=base)

    def _evaluate(self, node: ast.expr, scope: Scope) -> Value:
        file = self._file
        match node:
            case ast.Constant(value=value):
                return Constant(value, node=node, file=file)
            case ast.Name(id=name):
                found = scope.find(name)
                return Unknown(name, node=node, file=file) if found is None else found
            case ast.Attribute(value=base, attr=name):
                return self._attribute(self._evaluate(base, scope), name, node)
            case ast.Call():
                return self._evaluate_call(node, scope)
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare():
                return self._evaluate_operation(node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._evaluate_condition(node, test, body, orelse, scope)
            case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
                return self._evaluate_collection(node, scope)
            case ast.Subscript(value=base, slice=index):
                return self._item(self._evaluate(base, scope), self._evaluate(index, scope), node)
            case ast.Lambda():
                return self._define_function(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._evaluate_comprehension(node, scope)
            case ast.NamedExpr(target=target, value=value):
                named = self._evaluate(value, scope)
                self._bind(target, named, scope)
                return named
            case ast.Await(value=value) | ast.YieldFrom(value=value):
                return self._evaluate(value, scope)
            case ast.Yield(value=value):
                return self._evaluate_yield(node, value, scope)
        parts = tuple(
            self._evaluate(child, scope)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        )
        name = {ast.Starred: "*args", ast.JoinedStr: "f-string", ast.Slice: ":"}.get(
            type(node), "?"
        )
        return Operation(name, parts, node=node, file=file)

    def _evaluate_yield(self, node: ast.Yield, value: ast.expr | None, scope: Scope) -> Value:
        """Evaluate what a generator gives; that of a `with` statement runs its body here."""
        none = Constant(None, node=node, file=self._file)
        made = none if value is None else self._evaluate(value, scope)
        if self._frames:
            frame = self._frames[-1]
            if value is not None:
                frame.returned.append(made)
            body, frame.body = frame.body, None
            if body is not None:
                body(made)
        return Unknown("", node=node, file=self._file)

    def _evaluate_operation(
        self, node: ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare, scope: Scope
    ) -> Value:
        file = self._file
        match node:
            case ast.BinOp(left=left, right=right):
                inputs = [left, right]
            case ast.UnaryOp(operand=operand):
                inputs = [operand]
            case ast.BoolOp(values=values):
                inputs = values
            case ast.Compare(left=left, comparators=comparators):
                inputs = [left, *comparators]
        made = tuple(self._evaluate(operand, scope) for operand in inputs)
        if isinstance(node, ast.Compare):
            name = " ".join(OPERATORS[type(op)] for op in node.ops)
        else:
            name = OPERATORS[type(node.op)]
        number = made[0].value if isinstance(made[0], Constant) else None
        if isinstance(node, ast.UnaryOp) and name == "-" and isinstance(number, (int, float)):
            return Constant(-number, node=node, file=file)
        return Operation(name, made, node=node, file=file)

    def _evaluate_collection(
        self, node: ast.Tuple | ast.List | ast.Set | ast.Dict, scope: Scope
    ) -> Value:
        file = self._file
        if isinstance(node, ast.Dict):
            names = tuple(None if key is None else self._evaluate(key, scope) for key in node.keys)
            elements = [self._evaluate(value, scope) for value in node.values]
            return Collection("dict", elements, names, None not in names, node=node, file=file)
        elements = [self._evaluate(element, scope) for element in node.elts]
        is_complete = not any(isinstance(element, ast.Starred) for element in node.elts)
        kind = type(node).__name__.lower()
        return Collection(kind, elements, is_complete=is_complete, node=node, file=file)

    def _evaluate_condition(
        self, node: ast.IfExp, test: ast.expr, body: ast.expr, orelse: ast.expr, scope: Scope
    ) -> Value:
        made = self._test(test, scope)
        known = find_truth(made)
        if known is not None:
            return self._evaluate(body if known else orelse, scope)
        with self._recorder.scoped(branch=Branch(node, made, True)):
            first = self._evaluate(body, scope)
        with self._recorder.scoped(branch=Branch(node, made, False)):
            second = self._evaluate(orelse, scope)
        return join(first, second) or first

    def _evaluate_comprehension(self, node: ast.expr, scope: Scope) -> Value:
        inner = Scope({}, scope)
        with self._recorder.scoped():
            for generator in node.generators:  # type: ignore[attr-defined]
                iterated = self._evaluate(generator.iter, inner)
                self._recorder.enter(loop=SourceLoop(node, iterated))
                element = self._element(iterated, generator.iter)
                self._assign(generator.target, element, inner, None)
                for condition in generator.ifs:
                    self._evaluate(condition, inner)
            if isinstance(node, ast.DictComp):
                self._evaluate(node.key, inner)
            made = self._evaluate(
                node.value if isinstance(node, ast.DictComp) else node.elt,  # type: ignore[attr-defined]
                inner,
            )
        kinds = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict"}
        kind = kinds.get(type(node), "generator")
        return Collection(kind, [made], is_complete=False, node=node, file=self._file)

    def _test(self, node: ast.expr, scope: Scope) -> Value:
        made = self._evaluate(node, scope)
        self._add("test", node, made)
        return made

    def _attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        made: Value | None = None
        match base:
            case Instance():
                made = base.attributes.get(name)
                if made is None:
                    made = self._bound(base.cls.find(name), base, node)
            case Class():
                made = base.find(name)
            case ModuleValue():
                made = base.scope.get(name)
            case Symbol():
                return Symbol(f"{base.path}.{name}", node=node, file=self._file)
            case Either():
                options = [option for option in base.options if is_none(option) is not True]
                return join(*(self._attribute(option, name, node) for option in options)) or base
            case Super():
                made = self._bound(base.find(name), base.instance, node)
            case Call() | Unknown():
                made = self._options.get((base, name))
        return Attribute(base, name, node=node, file=self._file) if made is None else made

    def _bound(self, found: Value | None, owner: Value, node: ast.AST) -> Value | None:
        """Return a method of an object; a property is executed."""
        if not isinstance(found, Function) or found.has_decorator("staticmethod"):
            return found
        method = replace(found, owner=owner)
        if found.has_decorator("property", "cached_property"):
            return self._run_function(method, (), {}, node)
        return method

    def _item(self, base: Value, index: Value, node: ast.expr) -> Value:
        found = base.find(index) if isinstance(base, Collection) else None
        made = found or choose_item(base, index) or Item(base, index, node=node, file=self._file)
        return self._items.load(base, index, made)

    def _define_function(self, node: Definition, scope: Scope) -> Function:
        args = node.args
        positional = [*args.posonlyargs, *args.args]
        named = zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True)
        keyword = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        pairs = [(arg, default) for arg, default in (*named, *keyword) if default is not None]
        defaults = {arg.arg: self._evaluate(default, scope) for arg, default in pairs}
        decorators = tuple(
            self._evaluate(decorator, scope) for decorator in getattr(node, "decorator_list", ())
        )
        made = Function(node, scope, decorators, None, defaults, node=node, file=self._file)
        if not isinstance(node, ast.Lambda):
            self._functions.append(made)
        return made

    def _unpack(self, value: Value, index: int, node: ast.expr) -> Value:
        if isinstance(value, Collection) and value.is_complete and not value.keys:
            starred = isinstance(node, (ast.Tuple, ast.List)) and any(
                isinstance(element, ast.Starred) for element in node.elts
            )
            if index < len(value.elements) and not starred:
                return value.elements[index]
        if isinstance(value, Either):
            options = [self._unpack(option, index, node) for option in value.options]
            return join(*options) or value
        constant = Constant(index, node=node, file=self._file)
        if isinstance(node, (ast.Tuple, ast.List)) and index < len(node.elts):
            node = node.elts[index]
        return Item(value, constant, node=node, file=self._file)

    def _element(self, iterated: Value, node: ast.expr) -> Value:
        """Return one of the values of an iterable; `enumerate` gives a number and a value."""
        if isinstance(iterated, Call) and iterated.path == "enumerate" and iterated.args:
            number = Unknown("", node=node, file=self._file)
            inner = self._element(iterated.args[0], node)
            return Collection("tuple", [number, inner], node=node, file=self._file)
        if isinstance(iterated, Call) and iterated.path == "zip" and iterated.args:
            inner_values = [self._element(arg, node) for arg in iterated.args]
            return Collection("tuple", inner_values, node=node, file=self._file)
        if isinstance(iterated, Call) and iterated.args and iterated.name in _TRANSPARENT:
            return self._element(iterated.args[0], node)
        if isinstance(iterated, Collection) and not iterated.keys and iterated.elements:
            joined = join(*iterated.elements)
            if joined is not None and iterated.is_complete:
                return joined
        return Element(iterated, node=node, file=self._file)

    def _evaluate_call(self, node: ast.Call, scope: Scope) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._super(scope, node)
        called = self._evaluate(node.func, scope)
        args = tuple(self._evaluate(arg, scope) for arg in node.args)
        keywords = {word.arg or "**": self._evaluate(word.value, scope) for word in node.keywords}
        return self._call(called, args, keywords, node)

    def _call(
        self,
        called: Value,
        args: tuple[Value, ...],
        keywords: Mapping[str, Value],
        node: ast.AST,
    ) -> Value:
        match called:
            case Function():
                if self._is_followed(called):
                    return self._run_function(called, args, keywords, node)
                return self._add_call(called.name, called, args, keywords, node)
            case Class():
                return self._create(called, args, keywords, node)
            case Instance():
                return self._call_instance(called, args, keywords, node)
            case Symbol(path=path):
                made = self._add_call(path, None, args, keywords, node)
                return self._unwrap(made)
            case Unknown(name=name) if name in BUILTINS:
                made = self._add_call(name, None, args, keywords, node)
                is_member = name == "getattr" and len(args) > 1
                return (choose_attribute(*args[:2]) if is_member else None) or made
            case Attribute(base=base, name=name):
                made = self._add_call(f".{name}", base, args, keywords, node)
                chosen = choose_item(base, args[0]) if name == "get" and args else None
                return chosen or self._after_method(made, base)
            case Either():
                made_values = [
                    self._call(option, args, keywords, node) for option in called.options
                ]
                return join(*made_values) or called
        if isinstance(called, Call) and called.name == "partial" and called.args:
            merged = {**called.keywords, **keywords}
            return self._call(called.args[0], (*called.args[1:], *args), merged, node)
        return self._add_call("()", called, args, keywords, node)

    def _after_method(self, made: Call, base: Value) -> Value:
        """Return the value of a method of something that is not of the project."""
        if made.name in _RETURN_MODULE and isinstance(base, Instance) and base.cls.is_module:
            return base
        if made.name in ("append", "add", "extend") and isinstance(base, Collection) and made.args:
            base.elements.append(made.args[0])
            position = self._recorder.position
            if position.branches or position.loops or made.name == "extend":
                base.is_complete = False
        return self._unwrap(made)

    def _unwrap(self, made: Call) -> Value:
        """Return what a wrapper such as `accelerator.prepare` was given."""
        if made.name not in WRAPPERS or not made.args or made.has_unknown_arguments:
            return made
        if made.path.startswith(("torch.", ".")) or "." in made.path:
            if len(made.args) == 1 or made.name not in _SEVERAL:
                return made.args[0] if isinstance(made.args[0], Instance) else made
            return Collection("tuple", list(made.args), node=made.node, file=made.file)
        return made

    def _call_instance(
        self,
        called: Instance,
        args: tuple[Value, ...],
        keywords: Mapping[str, Value],
        node: ast.AST,
    ) -> Value:
        name = "forward" if called.cls.find("__call__") is None else "__call__"
        method = self._bound(called.cls.find(name), called, node)
        made = self._add_call("()", called, args, keywords, node)
        if isinstance(method, Function) and self._is_followed(method):
            made.result = self._run_function(method, args, keywords, node)
            if name == "__call__":
                return made.result
        return made

    def _create(
        self, cls: Class, args: tuple[Value, ...], keywords: Mapping[str, Value], node: ast.AST
    ) -> Value:
        made = Instance(
            cls, branches=len(self._recorder.position.branches), node=node, file=self._file
        )
        init = self._bound(cls.find("__init__"), made, node)
        if isinstance(init, Function) and self._is_followed(init):
            self._run_function(init, args, keywords, node)
        elif init is None and cls.find("__init__") is None:
            self._bind_fields(made, args, keywords)
        return made

    def _bind_fields(
        self, made: Instance, args: tuple[Value, ...], keywords: Mapping[str, Value]
    ) -> None:
        """Set the fields of a dataclass."""
        names = [
            field.target.id
            for field in made.cls.definition.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        ]
        made.attributes.update({key: value for key, value in keywords.items() if key in names})
        made.attributes.update(dict(zip(names, args, strict=False)))

    def _super(self, scope: Scope, node: ast.Call) -> Value:
        function = self._recorder.position.stack[-1] if self._recorder.position.stack else None
        owner = None if function is None else function.owner
        if isinstance(owner, Instance) and function is not None:
            lineage = list(owner.cls.lineage())
            at = next(
                (i for i, cls in enumerate(lineage) if function.definition in cls.definition.body),
                0,
            )
            return Super(owner, tuple(lineage[at + 1 :]), node=node, file=self._file)
        return Unknown("super", node=node, file=self._file)

    def _is_followed(self, function: Function) -> bool:
        stack, runs = self._recorder.position.stack, self._runs[function.definition]
        is_recursive = any(f.definition is function.definition for f in stack)
        return len(stack) < MAX_DEPTH and runs < MAX_RUNS and not is_recursive

    def _run_function(
        self,
        function: Function,
        args: tuple[Value, ...],
        keywords: Mapping[str, Value],
        node: ast.AST,
        *,
        is_entry: bool = False,
    ) -> Value:
        """Execute a function; return what it returns."""
        definition = function.definition
        self._reached.add(definition)
        self._runs[definition] += 1
        given = bind_arguments(function, args, keywords, is_entry=is_entry)
        scope = Scope(given, function.scope)
        before, self._file = self._file, function.file or self._file
        frame = _Frame(self._managed.pop(node, None) if is_manager(function) else None)
        self._frames.append(frame)
        try:
            with self._recorder.scoped(contexts=function.decorators, function=function):
                if isinstance(definition, ast.Lambda):
                    frame.returned.append(self._evaluate(definition.body, scope))
                    ends = False
                else:
                    ends = self._run(definition.body, scope)
        finally:
            self._file = before
            self._frames.pop()
        returned = frame.returned
        if is_generator(function):
            return Collection("generator", returned, is_complete=True, node=node, file=before)
        if ends or not returned:
            returned.append(Constant(None, node=node, file=before))
        return join(*returned) or returned[0]

    def _add_call(
        self,
        path: str,
        receiver: Value | None,
        args: tuple[Value, ...],
        keywords: Mapping[str, Value],
        node: ast.AST,
    ) -> Call:
        made = Call(path, receiver, args, keywords, node=node, file=self._file)
        closure = made.argument(0, "closure") if path == ".step" else None
        if isinstance(closure, Function) and self._is_followed(closure):
            self._run_function(closure, (), {}, node)
        self._add("call", node, made)
        if made.name == "register_step_post_hook":
            self._hooks.append(made)
        for hook, optimizer in find_step_hooks(self._hooks, made):
            if self._is_followed(hook):
                self._run_function(hook, (optimizer,), {}, node)
        return made


@dataclass(eq=False)
class _Frame:
    """A call of a function that is executed.

    Attributes:
        body: runs the body of a `with` statement, at the `yield` of the generator that manages it.
        returned: what it may return.
    """

    body: Callable[[Value], None] | None
    returned: list[Value] = field(default_factory=list)
