"""Resolve the Plan: how each option is decided, and what cannot be used together."""

from surestep.engine.plan.context import RESOLVERS as RESOLVERS
from surestep.engine.resolve import average as average
from surestep.engine.resolve import data as data
from surestep.engine.resolve import deepspeed as deepspeed
from surestep.engine.resolve import optim as optim
from surestep.engine.resolve import parallel as parallel
from surestep.engine.resolve import performance as performance
from surestep.engine.resolve import run as run
from surestep.engine.resolve import schedule as schedule
from surestep.engine.resolve import step as step
from surestep.engine.resolve import validation as validation
