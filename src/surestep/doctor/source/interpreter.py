"""Follow a script: which calls it makes, in which order, with what.

Each statement is executed once, with values that only remember how they were made. Calls of
functions of the project are followed; all others become events. A module of the project is executed
when a name that was imported from it is first used. Both branches of a condition are executed, and
what they assign differently is `Either` of the two. Nothing is claimed of what cannot be followed:
it is `Unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from surestep.doctor.source.arguments import can_follow_manager, find_annotated
from surestep.doctor.source.choices import holds_options
from surestep.doctor.source.evaluator import ExpressionEvaluator
from surestep.doctor.source.files import Project, SourceFile
from surestep.doctor.source.operators import OPERATORS, find_truth
from surestep.doctor.source.recorder import BudgetSpentError
from surestep.doctor.source.trace import Branch, Program, SourceLoop, Trace
from surestep.doctor.source.values import (
    Class,
    Collection,
    Constant,
    Function,
    Imported,
    Instance,
    ModuleValue,
    Operation,
    Scope,
    Symbol,
    Unknown,
    Value,
    join,
)

MAX_STATEMENTS = 20_000  # of a file, the functions that it calls included
MAX_STATEMENTS_ELSEWHERE = 1_000  # of these, in functions of other files
MAX_IMPORTS = 20  # files of the project that one file leads to
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def follow(file: SourceFile, project: Project) -> Program:
    """Follow a file, and then each of its functions that was not called."""
    return Interpreter(project).follow(file)


class Interpreter(ExpressionEvaluator):
    """Follows the source of a project.

    Args:
        project: where imports are looked for.
    """

    def __init__(self, project: Project) -> None:
        super().__init__()
        self._project = project
        self._modules: dict[SourceFile, Scope] = {}
        self._classes: list[Class] = []
        self._models: dict[tuple[Class, str], Instance] = {}  # of annotated parameters
        self._statements = 0
        self._statements_elsewhere = 0
        self._main: SourceFile

    def follow(self, file: SourceFile) -> Program:
        """Follow a file, and then each of its functions that was not called."""
        program = Program(file)
        self._main = file
        self._project.add(file)
        self._record(program, None, lambda: self._scope_of(file))
        program.functions = [f for f in self._functions if f.file is file]
        program.classes = [c for c in self._classes if c.file is file]
        for cls in program.classes:
            program.instances[cls] = self._make_instance(program, cls)
        names = _called_names(file)
        for is_called in (False, True):  # what others call is reached by following these
            for function in program.functions:
                if function.definition in self._reached:
                    continue
                if (function.name in names) == is_called:
                    self._record(program, function, partial(self._enter, program, function))
        return program

    def _record(self, program: Program, entry: Function | None, run: Callable[[], object]) -> None:
        self._file = program.file
        with self._recorder.fresh() as events:
            try:
                run()
            except (BudgetSpentError, RecursionError):
                program.truncated.extend(events[-1:])
        if events:
            program.traces.append(Trace(program.file, entry, events))

    def _make_instance(self, program: Program, cls: Class) -> Instance:
        made = Instance(cls, node=cls.definition, file=cls.file)
        init = self._attribute(made, "__init__", cls.definition)
        if isinstance(init, Function) and init.definition not in self._reached:
            self._record(program, init, lambda: self._enter(program, init))
        return made

    def _enter(self, program: Program, function: Function) -> None:
        """Execute a function whose arguments are not known."""
        if function.owner is None and (owner := self._owner(program, function)) is not None:
            function = replace(function, owner=owner)
        given = self._find_annotated(program, function)
        self._run_function(function, (), given, function.definition, is_entry=True)

    def _find_annotated(self, program: Program, function: Function) -> dict[str, Value]:
        """Return the parameters of a function whose annotation is a model of the project."""
        spec, found = function.definition.args, dict[str, Value]()
        for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
            cls = find_annotated(arg.annotation, function.scope)
            if cls is None or not cls.is_module or cls.find("forward") is None:
                continue
            if cls.file is program.file:
                made = program.instances.get(cls)
            else:
                made = self._models.get((cls, arg.arg)) or self._imagine(cls, arg)
                self._models[cls, arg.arg] = made
            if made is not None and not any(cls in other.bases for other in self._classes):
                found[arg.arg] = made
        return found

    def _imagine(self, cls: Class, node: ast.arg) -> Instance:
        """Return an object of a class of another file, made with unknown arguments."""
        made = Instance(cls, node=node, file=self._file)
        init = self._attribute(made, "__init__", node)
        if isinstance(init, Function) and self._is_followed(init):
            with self._recorder.fresh():  # its own events are found when its file is checked
                self._run_function(init, (), {}, node, is_entry=True)
        return made

    def _owner(self, program: Program, function: Function) -> Instance | None:
        for cls, instance in program.instances.items():
            if function.definition in cls.definition.body:
                return instance
        return None

    def _scope_of(self, file: SourceFile) -> Scope:
        """Return the names of a module, which is executed once."""
        if file not in self._modules:
            name = "__main__" if not self._modules else file.path.stem
            scope = self._modules[file] = Scope({"__name__": Constant(name)})
            before, self._file = self._file, file
            try:
                if len(self._modules) == 1:
                    self._run(file.tree.body, scope)
                else:
                    with self._recorder.fresh():  # its own events are found when it is checked
                        self._run(file.tree.body, scope)
            finally:
                self._file = before
        return self._modules[file]

    def _run(self, body: Sequence[ast.stmt], scope: Scope) -> bool:
        """Execute statements; return whether the end is reached."""
        before = self._recorder.position
        try:
            for statement in body:
                self._statements += 1
                if self._statements > MAX_STATEMENTS:
                    raise BudgetSpentError
                if self._file is not self._main and self._recorder.position.stack:
                    self._statements_elsewhere += 1
                if not self._run_statement(statement, scope):
                    return False
        finally:
            self._recorder.position = before  # a statement that leaves the block may change it
        return True

    def _is_followed(self, function: Function) -> bool:
        if (
            function.file is not self._main
            and self._statements_elsewhere > MAX_STATEMENTS_ELSEWHERE
        ):
            return False  # a library: what it does is found when its own files are checked
        return super()._is_followed(function)

    def _run_statement(self, node: ast.stmt, scope: Scope) -> bool:
        match node:
            case ast.Expr(value=value):
                self._evaluate(value, scope)
            case ast.Assign(targets=targets, value=value):
                made = self._evaluate(value, scope)
                for target in targets:
                    self._assign(target, made, scope, node)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._evaluate(value, scope), scope, node)
            case ast.AugAssign():
                self._augment(node, scope)
            case ast.For() | ast.AsyncFor():
                self._run_for(node, scope)
            case ast.While(test=test, body=body, orelse=orelse):
                made = self._test(test, scope)
                with self._recorder.scoped(loop=SourceLoop(node, test=made)):
                    self._run(body, scope)
                self._run(orelse, scope)
            case ast.If():
                return self._run_if(node, scope)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                return self._run_with(items, body, scope)
            case ast.Try() | ast.TryStar():
                return self._run_try(node, scope)
            case ast.Match(subject=subject, cases=cases):
                self._evaluate(subject, scope)
                for case in cases:
                    for name in _captured(case.pattern):
                        scope.names[name] = Unknown(name, node=node, file=self._file)
                    with self._recorder.scoped(branch=Branch(case.pattern, None, True)):
                        self._run(case.body, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.names[node.name] = self._define_function(node, scope)
            case ast.ClassDef():
                self._define_class(node, scope)
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                scope.globals.update(names)
            case ast.Return(value=value):
                none = Constant(None, node=node, file=self._file)
                made = none if value is None else self._evaluate(value, scope)
                if self._frames:
                    self._frames[-1].returned.append(made)
                self._add("return", node, made)
            case ast.Assert(test=test):
                self._test(test, scope)
            case ast.Raise(exc=ast.expr() as exc):
                self._evaluate(exc, scope)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        scope.names.pop(target.id, None)
        return not isinstance(node, _LEAVES)

    def _run_for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        iterated = self._evaluate(node.iter, scope)
        with self._recorder.scoped(loop=SourceLoop(node, iterated)):
            self._assign(node.target, self._element(iterated, node.iter), scope, None)
            self._run(node.body, scope)
        self._run(node.orelse, scope)

    def _run_if(self, node: ast.If, scope: Scope) -> bool:
        test = self._test(node.test, scope)
        known = find_truth(test)
        if known is not None:
            return self._run(node.body if known else node.orelse, scope)
        before = dict(scope.names)
        with self._recorder.scoped(branch=Branch(node, test, True)):
            ends = self._run(node.body, scope)
        after, scope.names = scope.names, before
        with self._recorder.scoped(branch=Branch(node, test, False)):
            else_ends = self._run(node.orelse, scope)
        if ends and else_ends:
            _merge(scope, after)
        elif ends:
            scope.names = after
        if ends != else_ends:  # what follows happens only in one of them
            guard = Branch(node, test, ends, is_guard=True)
            self._recorder.enter(branch=guard)
        return ends or else_ends

    def _run_with(
        self, items: Sequence[ast.withitem], body: Sequence[ast.stmt], scope: Scope
    ) -> bool:
        """Execute the body of a `with` statement between what its context managers do."""
        if not items:
            return self._run(body, scope)
        (item, *others), node = items, items[0].context_expr
        outside, file, reached = self._recorder.position, self._file, []

        def run_body(value: Value, *contexts: Value) -> None:
            if item.optional_vars is not None:
                self._assign(item.optional_vars, value, scope, None)
            with self._recorder.scoped(contexts=contexts):
                reached.append(self._run_with(others, body, scope))

        def run_at_yield(value: Value) -> None:
            frame, inside, own_file = self._frames.pop(), self._recorder.position, self._file
            self._recorder.position = outside._replace(contexts=inside.contexts)
            self._file = file
            try:
                run_body(value)
            finally:
                self._recorder.position, self._file = inside, own_file
                self._frames.append(frame)

        self._managed[node] = run_at_yield
        made = self._evaluate(node, scope)
        self._managed.pop(node, None)
        if not reached:  # no generator that is followed has run it
            enter, leave = self._find_methods(made, node)
            none = Constant(None, node=node, file=self._file)
            entered = None if enter is None else self._run_function(enter, (), {}, node)
            run_body(entered or made, made)
            if leave is not None:
                self._run_function(leave, (none, none, none), {}, node)
        return all(reached)

    def _find_methods(
        self, manager: Value, node: ast.expr
    ) -> tuple[Function, Function] | tuple[None, None]:
        """Return the methods of a context manager of the project; None if they are not followed."""
        for names in (("__enter__", "__exit__"), ("__aenter__", "__aexit__")):
            if not isinstance(manager, Instance):
                break
            enter, leave = (self._attribute(manager, name, node) for name in names)
            if (
                isinstance(enter, Function)
                and isinstance(leave, Function)
                and all(map(self._is_followed, (enter, leave)))
                and can_follow_manager(enter.definition)
            ):
                return enter, leave
        return None, None

    def _run_try(self, node: ast.Try | ast.TryStar, scope: Scope) -> bool:
        before = dict(scope.names)
        ends = self._run(node.body, scope) and self._run(node.orelse, scope)
        for handler in node.handlers:
            after, scope.names = scope.names, dict(before)
            if handler.name:
                scope.names[handler.name] = Unknown(handler.name, node=handler, file=self._file)
            with self._recorder.scoped(branch=Branch(handler, None, True)):
                handler_ends = self._run(handler.body, scope)
            if handler_ends and ends:
                _merge(scope, after)
            elif ends:
                scope.names = after
            ends = ends or handler_ends
        return self._run(node.finalbody, scope) and ends

    def _augment(self, node: ast.AugAssign, scope: Scope) -> None:
        load = node.target
        before = self._evaluate(load, scope)
        value = self._evaluate(node.value, scope)
        operator = OPERATORS.get(type(node.op), "?")
        made = Operation(operator, (before, value), node=node, file=self._file)
        self._add("augment", node, value, target=node.target, base=before)
        self._bind(node.target, made, scope)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """Bind names of other modules; those of the project are executed when a name is used."""
        file = self._file
        for alias in node.names:
            if isinstance(node, ast.Import):
                top, _, below = alias.name.partition(".")
                made: Value = Symbol(top, node=node, file=file)
                if alias.asname or not below:
                    made = Imported(partial(self._import_module, node, alias.name, 0, file))
                scope.names[alias.asname or top] = made
            elif alias.name != "*":
                load = partial(self._import_name, node, alias.name, file)
                scope.names[alias.asname or alias.name] = Imported(load)
            elif (found := self._find(node.module or "", node.level, file)) is not None:
                names = self._scope_of(found).names
                scope.names.update({key: names[key] for key in names if not key.startswith("_")})

    def _import_module(self, node: ast.stmt, module: str, level: int, file: SourceFile) -> Value:
        found = self._find(module, level, file)
        if found is None:
            return Symbol(f"{'.' * level}{module}", node=node, file=file)
        return ModuleValue(self._scope_of(found), node=node, file=file)

    def _import_name(self, node: ast.ImportFrom, name: str, file: SourceFile) -> Value:
        module = node.module or ""
        found = self._find(module, node.level, file)
        made = None if found is None else self._scope_of(found).get(name)
        if made is not None:
            return made
        # A module of a package, which may be a folder without __init__.py.
        return self._import_module(node, f"{module}.{name}".lstrip("."), node.level, file)

    def _find(self, module: str, level: int, importer: SourceFile) -> SourceFile | None:
        """Return the file of an imported module, unless the file leads to too many."""
        if len(self._modules) > MAX_IMPORTS:
            return None
        return self._project.find(module, level, importer.path)

    def _define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = tuple(self._evaluate(base, scope) for base in node.bases)
        inner = Scope({}, scope, is_class=True)
        made = Class(node, inner, bases, node=node, file=self._file)
        self._classes.append(made)
        self._run(node.body, inner)
        scope.names[node.name] = made

    def _assign(
        self, target: ast.expr, value: Value, scope: Scope, statement: ast.stmt | None
    ) -> None:
        """Bind a target of an assignment, a loop or a `with`; statements also become events."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                self._assign(element, self._unpack(value, index, target), scope, statement)
            return
        if isinstance(target, ast.Starred):
            target = target.value
        if statement is not None:
            base = None
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                base = self._evaluate(target.value, scope)
            self._add("store", statement, value, target=target, base=base)
        self._bind(target, value, scope)

    def _bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                found: Scope | None = scope
                if name in scope.globals:
                    found = scope.parent
                    while found is not None and name not in found.names:
                        found = found.parent
                (found or scope).names[name] = value
            case ast.Attribute(value=base, attr=name):
                owner = self._evaluate(base, scope)
                if isinstance(owner, Instance):
                    before = owner.attributes.get(name)
                    is_certain = len(self._recorder.position.branches) <= owner.branches
                    made = value if is_certain else join(before, value)
                    owner.attributes[name] = made or value
                elif holds_options(owner):
                    self._options[owner, name] = join(self._attribute(owner, name, target), value)
            case ast.Subscript(value=base, slice=index):
                owner = self._evaluate(base, scope)
                self._items.store(owner, self._evaluate(index, scope), value)
                if isinstance(owner, Collection):
                    owner.elements.append(value)
                    owner.is_complete = False


def _merge(scope: Scope, other: dict[str, Value]) -> None:
    for name in {*scope.names, *other}:
        before, after = other.get(name), scope.names.get(name)
        if before is not after and (joined := join(after, before)) is not None:
            scope.names[name] = joined


def _captured(pattern: ast.pattern) -> list[str]:
    names = (getattr(node, "name", None) for node in ast.walk(pattern))
    return [name for name in names if isinstance(name, str)]


def _called_names(file: SourceFile) -> set[str]:
    """Return the names of all functions and methods that a file calls."""
    calls = (node.func for node in file.nodes if isinstance(node, ast.Call))
    names = (getattr(called, "id", getattr(called, "attr", "")) for called in calls)
    return set(names)
