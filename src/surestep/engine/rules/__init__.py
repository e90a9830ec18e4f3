"""The rules of the Plan: how each option is decided, and what cannot be used together."""

from surestep.engine.plan.context import RULES as RULES
from surestep.engine.rules import average as average
from surestep.engine.rules import data as data
from surestep.engine.rules import deepspeed as deepspeed
from surestep.engine.rules import optim as optim
from surestep.engine.rules import parallel as parallel
from surestep.engine.rules import performance as performance
from surestep.engine.rules import run as run
from surestep.engine.rules import schedule as schedule
from surestep.engine.rules import step as step
from surestep.engine.rules import validation as validation
