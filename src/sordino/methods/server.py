"""The server's step on an averaged update: post-processing, free of privacy cost."""

from dataclasses import replace

from sordino.core.types import State, Vector
from sordino.methods.base import Plan


def step(state: State, update: Vector, plan: Plan) -> State:
    """params + server_lr * update, through a heavy-ball momentum where the plan asks for one."""
    if plan.server_momentum:
        velocity = plan.server_momentum * state.extra["velocity"] + update
        state = replace(state, extra=state.extra | {"velocity": velocity})
        update = velocity
    return replace(state, params=state.params + plan.server_lr * update)


def begin(state: State, plan: Plan) -> State:
    if plan.server_momentum:
        return replace(state, extra=state.extra | {"velocity": 0 * state.params})
    return state
