"""Counting what is compiled."""

import contextlib

import jax


@contextlib.contextmanager
def compilations():
    """Collects a name for every program that is compiled, or loaded from the compilation cache."""
    seen = []

    def listen(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
